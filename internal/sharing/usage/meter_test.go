package usage

import (
	"context"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/quick"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
)

var (
	widgets = keys.CustomResource(schema.GroupResource{Group: "example.com", Resource: "widgets"}, "f00d")
	export  = exports.Name{Cluster: "provider", Name: "widgets"}
)

// A world is a store with a meter, and a clock.
type world struct {
	t   testing.TB
	dir string
	*store.Store
	*Meter

	mu      sync.Mutex
	seconds float64 // since 1970
	unbound map[cluster.Name]bool
	retired bool // whether the export is deleted
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, dir: t.TempDir(), seconds: 1e9, unbound: map[cluster.Name]bool{}}
	w.start()
	t.Cleanup(func() { w.Store.Close() })
	return w
}

// start opens the store, as a new process does.
func (w *world) start() {
	w.t.Helper()
	var err error
	if w.Store, err = store.Open(w.t.Context(), store.Options{Dir: w.dir, Version: "1.36", NoSync: true}); err != nil {
		w.t.Fatal(err)
	}
	w.Meter = w.meter()
	w.ok(w.Feed().Start(w.t.Context()))
}

// kill ends the process without a last write.
func (w *world) kill() { w.Store.Close() }

// meter returns a meter of the store. Several of one store are like several processes.
func (w *world) meter() *Meter {
	return New(Config{Store: w.Store, around: surroundings{
		now: func() time.Time {
			w.mu.Lock()
			defer w.mu.Unlock()
			return time.UnixMilli(int64(w.seconds * 1000))
		},
		bound: func(s subject) (exports.Name, bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return export, !w.unbound[s.consumer]
		},
		named: func(c cluster.Name) (cluster.Path, cluster.Name, bool) {
			return "root:" + cluster.Path(c), "tenant", true
		},
		exported: func(string) bool { return !w.retired },
	}})
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) pass(seconds float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seconds += seconds
}

func (w *world) bind(c cluster.Name, bound bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unbound[c] = !bound
}

// put stores an object of a number of bytes, or deletes it if that is 0.
func (w *world) put(c cluster.Name, name string, bytes int) {
	w.t.Helper()
	n := store.Note{Key: widgets.Key(c, "default", name)}
	if bytes > 0 {
		n.Value = make([]byte, bytes)
	}
	rev, err := w.WriteNotes(w.t.Context(), []store.Note{n})
	w.ok(err)
	w.ok(w.Feed().WaitFor(w.t.Context(), rev))
}

func (w *world) write(m *Meter) {
	w.t.Helper()
	w.ok(m.Write(w.t.Context()))
	w.ok(w.Feed().CatchUp(context.Background()))
}

// reads returns objects, object-seconds and byte-seconds of a consumer in a report.
func (w *world) reads(m *Meter, c cluster.Name) [3]int64 {
	w.t.Helper()
	used, _ := m.used(export, widgets.Identity)
	r := used[subjectOf(c, widgets)]
	return [3]int64{r.Objects, r.ObjectTime.Seconds, r.ByteTime.Seconds}
}

func (w *world) wants(what string, m *Meter, c cluster.Name, want ...int64) {
	w.t.Helper()
	if got := w.reads(m, c); got != [3]int64(want) {
		w.t.Errorf("%s: %s has %d objects, %d object-seconds and %d byte-seconds, want %d", what, c, got[0], got[1], got[2], want)
	}
}

// Sums are exact, and time that goes back adds nothing.
func TestSums(t *testing.T) {
	if err := quick.Check(func(amounts []uint32, times []uint32) bool {
		var s sum
		want := new(big.Int)
		for i := range min(len(amounts), len(times)) {
			s = s.plus(int64(amounts[i]), int64(times[i]))
			want.Add(want, new(big.Int).Mul(big.NewInt(int64(amounts[i])), big.NewInt(int64(times[i]))))
		}
		got := new(big.Int).Add(new(big.Int).Mul(big.NewInt(s.Seconds), big.NewInt(1000)), big.NewInt(s.Millis))
		return got.Cmp(want) == 0 && s.Millis >= 0 && s.Millis < 1000
	}, nil); err != nil {
		t.Error(err)
	}
	year := int64(365 * 24 * 3600 * 1000)
	if got := (sum{}).plus(8<<30, year); got != (sum{Seconds: 8 << 30 * 365 * 24 * 3600}) {
		t.Errorf("8 GiB for a year are %+v", got)
	}
	r := record{At: 5000, Objects: 3, Bytes: 10}
	if got := r.until(4000); !cmp.Equal(got, r) {
		t.Errorf("an earlier time changes the record to %+v", got)
	}
	if got, want := r.until(7000), r.until(6000).until(6000).until(7000); !cmp.Equal(got, want) || got.ObjectTime.Seconds != 6 {
		t.Errorf("at once %+v, in steps %+v", got, want)
	}
}

// A crash loses the time of no object: changes that were not written count from the last mark
// on, and the time without a server counts as all other time.
func TestRestart(t *testing.T) {
	w := newWorld(t)
	w.write(w.Meter)
	w.pass(10)
	w.put("c", "a", 100)
	w.put("c", "b", 50)
	w.pass(30)
	w.put("c", "b", 0)
	w.pass(0.5)
	w.put("c", "a", 300)
	w.pass(19.5)
	w.wants("before the first write", w.Meter, "c", 0, 0, 0)
	w.write(w.Meter)
	w.wants("written", w.Meter, "c", 1, 2*30+20, 150*30+50+300*39/2) // 80, and bytes: 150 for 30 s, 100 for 0.5 s, 300 for 19.5 s
	w.pass(10)
	w.put("c", "b", 50)
	w.put("d", "new", 10)
	w.wants("not written", w.Meter, "c", 1, 80, 10400)
	w.kill()
	w.pass(3600)
	w.start()
	w.wants("a report before the loops run", w.Meter, "c", 1, 80, 10400)
	w.write(w.Meter)
	w.wants("after the crash", w.Meter, "c", 2, 80+2*3610, 10400+350*3610)
	w.wants("created after the last mark", w.Meter, "d", 1, 3610, 36100)
	w.kill()
	w.pass(100)
	w.start()
	w.write(w.Meter)
	w.wants("nothing changed", w.Meter, "c", 2, 80+2*3710, 10400+350*3710)
}

// Another process that takes over continues with the same figures. A clock that goes back stops
// the figures until it has caught up.
func TestTakeOver(t *testing.T) {
	w := &world{t: t, dir: t.TempDir(), seconds: 1e9, unbound: map[cluster.Name]bool{}}
	var err error
	w.Store, err = store.Open(t.Context(), store.Options{Dir: w.dir, Version: "1.36", NoSync: true})
	w.ok(err)
	defer w.Store.Close()
	a, b := w.meter(), w.meter()
	w.ok(w.Feed().Start(t.Context()))
	w.write(a)
	w.put("c", "a", 100)
	w.pass(10)
	w.write(a)
	w.wants("the process that measures", a, "c", 1, 10, 1000)
	w.wants("another one", b, "c", 1, 10, 1000)
	w.pass(5)
	w.put("c", "b", 100)
	w.ok(a.Stop(t.Context()))
	w.pass(5)
	w.put("c", "c", 100)
	w.wants("between two", b, "c", 2, 15, 1500)
	w.write(b)
	w.wants("taken over", b, "c", 3, 15+15, 3000)
	w.wants("the first one", a, "c", 3, 30, 3000)
	w.put("c", "c", 0)

	w.pass(-100)
	w.put("c", "b", 0)
	w.write(b)
	w.wants("the clock went back", b, "c", 1, 30, 3000)
	w.pass(100)
	w.write(b)
	w.wants("the clock has caught up", b, "c", 1, 30, 3000)
	w.pass(10)
	w.write(b)
	w.wants("and goes on", b, "c", 1, 40, 4000)
}

// Whatever happens, a report never has less than an earlier one, and all time is counted.
func TestRandomHistories(t *testing.T) {
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t)
		w.write(w.Meter)
		var total, marked, now, mark float64 // object-seconds now and at the mark
		have := map[string]bool{}
		var last [3]int64
		for range 150 {
			switch r.IntN(8) {
			case 0, 1, 2, 3:
				name := fmt.Sprint(r.IntN(5))
				w.put("c", name, map[bool]int{true: 10}[!have[name]])
				if have[name] = !have[name]; !have[name] {
					delete(have, name)
				}
			case 4, 5:
				d := float64(r.IntN(100_000)) / 1000
				w.pass(d)
				now, total = now+d, total+d*float64(len(have))
			case 6:
				w.write(w.Meter)
				mark, marked = now, total
			case 7:
				w.kill()
				w.start()
				w.write(w.Meter)
				total = marked + (now-mark)*float64(len(have))
				mark, marked = now, total
			}
			got := w.reads(w.Meter, "c")
			if got[1] < last[1] || got[2] < last[2] {
				t.Fatalf("seed %d: %d after %d", seed, got, last)
			}
			last = got
		}
		w.write(w.Meter)
		if got := w.reads(w.Meter, "c"); float64(got[1]) < total-1 || float64(got[1]) > total+1 || float64(got[2]) < 10*total-10 || float64(got[2]) > 10*total+10 {
			t.Errorf("seed %d: %d object-seconds, %d byte-seconds, want %.3f of 10 bytes", seed, got[1], got[2], total)
		}
	}
}

// The figures of a consumer that unbinds stay for the retention, and go on if it binds again.
func TestEnds(t *testing.T) {
	w := newWorld(t)
	w.write(w.Meter)
	w.put("c", "a", 100)
	w.pass(10)
	w.put("c", "a", 0)
	w.bind("c", false)
	w.write(w.Meter)
	ended := func() float64 {
		used, _ := w.used(export, widgets.Identity)
		return float64(used[subjectOf("c", widgets)].Ended) / 1000
	}
	w.wants("unbound", w.Meter, "c", 0, 10, 1000)
	if ended() != w.seconds {
		t.Errorf("the end is %f, not %f", ended(), w.seconds)
	}
	w.pass(100)
	w.bind("c", true)
	w.write(w.Meter)
	w.put("c", "a", 100)
	w.pass(10)
	w.write(w.Meter)
	w.wants("bound again", w.Meter, "c", 1, 20, 2000)
	if ended() != 0 {
		t.Error("a bound consumer has ended")
	}
	w.bind("c", false)
	w.put("c", "a", 0)
	w.write(w.Meter)
	w.pass(retention.Seconds() - 1)
	w.write(w.Meter)
	w.wants("within the retention", w.Meter, "c", 0, 20, 2000)
	w.pass(2)
	w.write(w.Meter)
	if used, _ := w.used(export, widgets.Identity); len(used) > 0 {
		t.Errorf("after the retention there are %v", used)
	}
	w.bind("c", true)
	w.put("c", "a", 100)
	w.pass(10)
	w.write(w.Meter)
	w.put("c", "a", 0)
	w.bind("c", false)
	w.retired = true
	w.write(w.Meter)
	w.write(w.Meter)
	if used, _ := w.used(export, widgets.Identity); len(used) > 0 {
		t.Errorf("without the export there are %v", used)
	}
	if n, err := w.RawClient().Get(t.Context(), w.Prefix()+notes().Prefix(), clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil || n.Count != 1 {
		t.Errorf("etcd has %d keys, want only the mark: %v", n.Count, err)
	}
}

// A tenant leaves behind a limited number of records, and not those of other tenants go.
func TestEndedRecordsAreLimited(t *testing.T) {
	w := newWorld(t)
	var seen []state
	for i := range maxEnded + 2 {
		c := cluster.Name(fmt.Sprint("c", i))
		seen = append(seen, state{subjectOf(c, widgets), record{Ended: 1e12 + int64(i), Tenant: "tenant"}, false})
	}
	seen = append(seen, state{subjectOf("other", widgets), record{Ended: 1e12 - 1, Tenant: "other"}, false})
	w.around.bound = func(subject) (exports.Name, bool) { return exports.Name{}, false }
	drops, updates := w.settle(seen)
	want := []subject{subjectOf("c0", widgets), subjectOf("c1", widgets)}
	if !cmp.Equal(drops, want, cmp.AllowUnexported(subject{})) || len(updates) > 0 {
		t.Errorf("%v are deleted and %d updated, want %v and none", drops, len(updates), want)
	}
}

// The last day of requests in each version is stored once a day, whatever the number of
// requests.
func TestUsedVersions(t *testing.T) {
	w := newWorld(t)
	asks := func() {
		t.Helper()
		for range 3 {
			w.Requested("c", widgets, "v1")
			w.Requested("root", keys.CustomResource(schema.GroupResource{Group: "tenancy.kcp.io", Resource: "workspaces"}, "f00d"), "v1alpha1")
		}
		before := w.Latest()
		w.ok(w.WriteUses(t.Context()))
		w.ok(w.WriteUses(t.Context()))
		w.ok(w.Feed().CatchUp(t.Context()))
		if n := w.Latest() - before; n > 1 {
			t.Errorf("%d writes", n)
		}
	}
	is := func(want string) {
		t.Helper()
		if got := fmt.Sprint(w.uses.of(subjectOf("c", widgets))); got != want {
			t.Errorf("the versions are %s, want %s", got, want)
		}
	}
	asks()
	is("[{v1 2001-09-09}]")
	w.kill()
	w.start()
	is("[{v1 2001-09-09}]")
	before := w.Latest()
	asks()
	if w.Latest() != before {
		t.Error("the same day is written again")
	}
	w.pass(24 * 3600)
	asks()
	is("[{v1 2001-09-10}]")
	w.bind("c", false)
	w.write(w.Meter)
	is("[]")
	w.bind("c", true) // on the same day
	asks()
	is("[{v1 2001-09-10}]")
}

// Tenants choose parts of the keys.
func TestKeys(t *testing.T) {
	for _, s := range []subject{subjectOf("c", widgets), {"system:x", schema.GroupResource{Resource: "pods"}, "f00d"}, {"c", schema.GroupResource{Group: "a.b.c.d", Resource: "w"}, "-"}} {
		if got, ok := parse(s.key()); !ok || got != s || s.key().Validate() != nil {
			t.Errorf("%+v became %+v", s, got)
		}
		u := use{s, "v1beta1"}
		if got, ok := parseUse(u.key()); !ok || got != u || u.key().Validate() != nil {
			t.Errorf("%+v became %+v", u, got)
		}
	}
	if _, ok := parse(mark()); ok || mark().Validate() != nil {
		t.Error("the mark is the key of a record")
	}
}

// BenchmarkConsumers measures one interval of an export with 10,000 consumers: without changes,
// after a change in each consumer, and a whole report.
func BenchmarkConsumers(b *testing.B) {
	const consumers = 10_000
	w := newWorld(b)
	change := func(bytes int) {
		for some := range slices.Chunk(slices.Collect(func(yield func(int) bool) {
			for i := range consumers {
				if !yield(i) {
					return
				}
			}
		}), notesAtOnce) {
			notes := make([]store.Note, len(some))
			for j, i := range some {
				notes[j] = store.Note{Key: widgets.Key(cluster.Name(fmt.Sprint("consumer", i)), "default", "w"), Value: make([]byte, bytes)}
			}
			_, err := w.WriteNotes(b.Context(), notes)
			w.ok(err)
		}
		w.ok(w.Feed().CatchUp(b.Context()))
	}
	w.write(w.Meter)
	change(1)
	w.write(w.Meter)
	b.Run("idle", func(b *testing.B) {
		for range b.N {
			w.ok(w.Write(b.Context()))
		}
	})
	b.Run("busy", func(b *testing.B) {
		for i := range b.N {
			b.StopTimer()
			change(2 + i)
			b.StartTimer()
			w.ok(w.Write(b.Context()))
		}
	})
	b.Run("read", func(b *testing.B) {
		for range b.N {
			if used, _ := w.used(export, widgets.Identity); len(used) != consumers {
				b.Fatal(len(used))
			}
		}
	})
	b.Run("requests", func(b *testing.B) {
		for i := range b.N {
			w.Requested(cluster.Name(fmt.Sprint("consumer", i%consumers)), widgets, "v1")
		}
	})
}
