package watchcache

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/registry"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/storetest"
)

// warmed warms a resource and returns its filled cache, which stays until done.
func warmed(t testing.TB, api storage.Interface, r keys.Resource) *warmCache {
	t.Helper()
	c := api.(*registry.Storage).Interface.(*custom)
	all := c.caches.customs
	for began := time.Now(); time.Since(began) < storetest.Patience; runtime.Gosched() {
		all.read(r, all.caches.limits.objects, c.cfg)
		if w := all.use(r); w != nil {
			return w
		}
	}
	t.Fatalf("%v stays cold", r)
	return nil
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for began := time.Now(); !holds(); runtime.Gosched() {
		if time.Since(began) > storetest.Patience {
			t.Fatalf("not true in time: %s", what)
		}
	}
}

// A stillClock is a clock that only the test moves.
type stillClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *stillClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *stillClock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// kelvin returns a world of custom resources, whose caches are swept only on demand, and the
// clock of the caches.
func kelvin(t *testing.T) (*world, *stillClock) {
	w := &world{TB: t, flavour: customs(), dir: t.TempDir()}
	w.start()
	t.Cleanup(func() { w.ended() })
	c := &stillClock{now: time.Unix(1e9, 0)}
	w.store.customs.now = c.Now
	w.store.limits.sweep = time.Hour
	return w, c
}

func (w *world) warmth() (warm []string) {
	all := w.store.customs
	all.mu.Lock()
	defer all.mu.Unlock()
	for r := range all.warm {
		warm = append(warm, r.Identity)
	}
	return warm
}

func (w *world) listIn(c cluster.Name, identity string) int {
	w.Helper()
	list := w.flavour.list()
	w.ok(w.apis[0].GetList(space{c, identity}.context(), w.root, everything(""), list), "list %q of %s", identity, c)
	return meta.LenList(list)
}

// A resource becomes warm when lists read many of its objects within a minute. Lists return
// the same objects before, during and after that, and after it has become cold again.
func TestWarmUpAndCoolDown(t *testing.T) {
	w, clock := kelvin(t)
	w.store.limits.objects = 200
	create(t, w.store, "c1", "c2")
	for i := range 10 {
		w.put(space{cluster: "c1"}, object{"ns", fmt.Sprint("o", i)}, "")
	}
	list := func() {
		t.Helper()
		if n := w.listIn("c1", ""); n != 10 {
			t.Errorf("a list has %d objects", n)
		}
		if n := w.listIn("c2", ""); n != 0 {
			t.Errorf("a list of another cluster has %d objects", n)
		}
	}
	for range 20 { // few lists per minute leave it cold
		list()
		clock.pass(20 * time.Second)
	}
	if got := w.warmth(); len(got) != 0 {
		t.Errorf("warm after few lists: %v", got)
	}
	for range 10 {
		list()
	}
	if got := w.warmth(); len(got) != 1 {
		t.Errorf("warm after many lists: %v", got)
	}
	w.store.customs.done(warmed(t, w.apis[0], w.resource("")))
	followed := w.store.TrackProgress(w.resource("").Prefix())
	for range 3 {
		list()
		clock.pass(w.store.limits.idle - time.Second)
		w.store.customs.sweep()
	}
	if got := w.warmth(); len(got) != 1 {
		t.Errorf("warm while it is listed: %v", got)
	}
	held := warmed(t, w.apis[0], w.resource(""))
	clock.pass(2 * w.store.limits.idle)
	if !w.store.customs.sweep() {
		t.Error("a cache in use was stopped")
	}
	w.store.customs.done(held)
	clock.pass(w.store.limits.idle)
	if w.store.customs.sweep() {
		t.Error("a cache that nobody reads stays")
	}
	list()
	eventually(t, "nothing is followed for a cache that stopped", func() bool {
		defer w.store.UntrackProgress(w.resource("").Prefix())
		return w.store.TrackProgress(w.resource("").Prefix()) != followed
	})
	list()
	if c := w.store.customs.count; c.warm.Load() != 0 || c.warmings.Load() != 1 || c.coolings.Load() != 1 {
		t.Errorf("counted: %d warm, %d warmings, %d coolings", c.warm.Load(), c.warmings.Load(), c.coolings.Load())
	}
}

// A list with a selector counts all objects that it read.
func TestHeatIsWhatWasRead(t *testing.T) {
	w, _ := kelvin(t)
	w.store.limits.objects = 5 * (10 + listCost)
	create(t, w.store, "c1")
	for i := range 10 {
		w.put(space{cluster: "c1"}, object{"ns", fmt.Sprint("o", i)}, "")
	}
	o := choice{red: true}.options("")
	for i := range 5 {
		if got := w.warmth(); len(got) != 0 {
			t.Errorf("warm after %d lists: %v", i, got)
		}
		w.ok(w.apis[0].GetList(in("c1"), w.root, o, w.flavour.list()), "list")
	}
	if got := w.warmth(); len(got) != 1 {
		t.Errorf("warm: %v", got)
	}
}

// The number of caches is limited. A new one replaces the one that was not read for the
// longest time, unless all are in use.
func TestBoundOfCaches(t *testing.T) {
	w, clock := kelvin(t)
	w.store.limits.caches, w.store.limits.objects = 3, 1
	create(t, w.store, "c1")
	hot := func(id string) bool {
		w.listIn("c1", id) // warms the resource
		all := w.warmth()
		for _, got := range all {
			if got == id {
				w.store.customs.done(warmed(t, w.apis[0], w.resource(id)))
				return true
			}
		}
		if len(all) > 3 {
			t.Errorf("warm: %v", all)
		}
		return false
	}
	for _, id := range []string{"a", "b", "c"} {
		if !hot(id) {
			t.Errorf("%s stays cold", id)
		}
		clock.pass(time.Second)
	}
	if hot("d") {
		t.Error("one in use made room")
	}
	clock.pass(countFor)
	hot("a") // the most recently read one
	held := warmed(t, w.apis[0], w.resource("b"))
	if !hot("d") {
		t.Error("none made room")
	}
	w.store.customs.done(held)
	got := map[string]bool{}
	for _, id := range w.warmth() {
		got[id] = true
	}
	if len(got) != 3 || !got["a"] || !got["b"] || !got["d"] {
		t.Errorf("warm: %v, want a, b and d", got)
	}
}

// The sweeping goroutine ends with the last cache, and starts again with the next one.
func TestJanitor(t *testing.T) {
	w, clock := kelvin(t)
	w.store.limits.sweep = time.Millisecond
	create(t, w.store, "c1")
	for range 3 {
		w.store.customs.done(warmed(t, w.apis[0], w.resource("")))
		clock.pass(w.store.limits.idle)
		w.store.customs.running.Wait() // the goroutine, and the caches that it stops
		if got := w.warmth(); len(got) != 0 || w.store.customs.sweeping {
			t.Errorf("warm: %v, watched over: %v", got, w.store.customs.sweeping)
		}
	}
}

// A cache with mostly deleted objects is stopped, even if it is read often. A cache with
// mostly live objects stays, even if they change often.
func TestSwollenCache(t *testing.T) {
	w, _ := kelvin(t)
	w.store.limits.history = 1000
	create(t, w.store, "c1")
	w.store.customs.done(warmed(t, w.apis[0], w.resource("")))
	for i := range 50 {
		w.put(space{cluster: "c1"}, object{"ns", fmt.Sprint("o", i)}, "")
	}
	change := func(i int) {
		at := object{"ns", fmt.Sprint("o", i)}
		w.ok(w.apis[0].GuaranteedUpdate(in("c1"), w.key(at), w.empty(), false, nil, setTo(w, at, "changed"), nil), "update")
	}
	for i := range 25 {
		change(i)
	}
	storetest.CatchUp(t, w.store)
	w.listIn("c1", "") // the cache is current
	if w.store.customs.sweep(); len(w.warmth()) != 1 {
		t.Error("a cache of what is there was stopped")
	}
	for i := range 45 {
		at := object{"ns", fmt.Sprint("o", i)}
		w.ok(w.apis[0].Delete(in("c1"), w.key(at), w.empty(), nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}), "delete")
	}
	storetest.CatchUp(t, w.store)
	if n := w.listIn("c1", ""); n != 5 {
		t.Errorf("%d objects are left", n)
	}
	if w.store.customs.sweep(); len(w.warmth()) != 0 {
		t.Error("a cache of what is gone was kept")
	}
	if n := w.listIn("c1", ""); n != 5 {
		t.Errorf("%d objects are left", n)
	}
}

// Many resources that are listed once leave no goroutines behind.
func TestManyResources(t *testing.T) {
	const n = 1000
	w, _ := kelvin(t)
	create(t, w.store, "c1")
	w.listIn("c1", "0")
	before := runtime.NumGoroutine()
	for i := range n {
		s := space{"c1", fmt.Sprint("i", i)}
		w.put(s, object{"ns", "x"}, "")
		if got := w.listIn("c1", s.identity); got != 1 {
			t.Fatalf("%s has %d objects", s.identity, got)
		}
	}
	if after := runtime.NumGoroutine(); after > before+n/100 {
		t.Errorf("%d goroutines before, %d after", before, after)
	}
	w.store.customs.mu.Lock()
	defer w.store.customs.mu.Unlock()
	if got := len(w.store.customs.listCounts); got > 2*n {
		t.Errorf("%d list counts", got)
	}
}

// Counts of resources that are no longer read are dropped.
func TestListCountsAreForgotten(t *testing.T) {
	w, clock := kelvin(t)
	all := w.store.customs
	for i := range 5000 {
		all.read(w.resource(fmt.Sprint(i)), 1, nil)
		clock.pass(time.Second)
	}
	if n := len(all.listCounts); n > 1100 {
		t.Errorf("%d resources are remembered", n)
	}
}

// A store can close while its caches are filled, stopped and read.
func TestCloseUnderLoad(t *testing.T) {
	storetest.NoneLeft(t, func() {
		s := serve(t, store.Options{Dir: t.TempDir(), Version: "1.36", NoSync: true})
		s.limits.objects, s.limits.caches, s.limits.sweep, s.limits.idle = 1, 2, time.Millisecond, time.Nanosecond
		api := widgetsOf(t, s, "v1")
		storetest.StartFeeds(t, s)
		create(t, s, "c1")
		var requests sync.WaitGroup
		ctx, end := context.WithCancel(context.Background())
		for i := range 4 {
			requests.Go(func() {
				for ctx.Err() == nil {
					for j := range 5 {
						c := cluster.With(registry.WithIdentity(ctx, fmt.Sprint(i, j)), "c1")
						if err := api.GetList(c, "/c/example.com/widgets", everything(""), storetest.EmptyWidgets()); err != nil && ctx.Err() == nil && !apierrors.IsTimeout(err) {
							t.Error(err)
						}
						if _, err := api.Watch(c, "/c/example.com/widgets", everything("")); err != nil { // never stopped by the client
							t.Error(err)
						}
					}
				}
			})
		}
		for s.customs.count.coolings.Load() < 5 {
			runtime.Gosched()
		}
		end()
		requests.Wait()
		s.Close()
	})
}

// A cache that starts while the previous one is still stopping is current.
func TestWarmAgain(t *testing.T) {
	w, _ := kelvin(t)
	create(t, w.store, "c1")
	all, r := w.store.customs, w.resource("")
	for i := range 10 {
		all.done(warmed(t, w.apis[0], r))
		all.mu.Lock()
		all.retire(r)
		all.mu.Unlock()
		held := warmed(t, w.apis[0], r)
		for j := range 20 {
			w.put(space{cluster: "c1"}, object{"ns", fmt.Sprint("o", i, "-", j)}, "")
			if n := w.listIn("c1", ""); n != 20*i+j+1 {
				t.Fatalf("%d objects are listed, want %d", n, 20*i+j+1)
			}
		}
		all.done(held)
		all.mu.Lock()
		all.retire(r)
		all.mu.Unlock()
	}
}
