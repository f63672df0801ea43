package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/storetest"
)

// A breakable watcher can lose its watch, and calls a function before each watch.
type breakable struct {
	clientv3.Watcher
	before func(watch int)
	began  chan int

	mu     sync.Mutex
	cancel context.CancelFunc
	n      int
}

func (b *breakable) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	ctx, cancel := context.WithCancel(ctx)
	b.mu.Lock()
	n := b.n
	b.n, b.cancel = n+1, cancel
	b.mu.Unlock()
	if b.before != nil {
		b.before(n)
	}
	b.began <- n
	return b.Watcher.Watch(ctx, key, opts...)
}

// again waits until the feed has read everything again and watches for the nth time.
func (b *breakable) again(t testing.TB, n int) {
	t.Helper()
	for {
		select {
		case got := <-b.began:
			if got == n {
				return
			}
		case <-time.After(storetest.Patience):
			t.Fatal("no new watch")
		}
	}
}

func (b *breakable) lose() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cancel()
}

// openBreakable opens a store whose feed can lose its watch, and has not started.
func openBreakable(t testing.TB, dir string) (*Store, storage.Interface, *breakable) {
	t.Helper()
	s, err := Open(t.Context(), here(Options{Dir: dir, Version: "1.36", NoSync: true}))
	if err != nil {
		t.Fatal(err)
	}
	b := &breakable{Watcher: s.feedClient.Watcher, began: make(chan int, 100)}
	s.feedClient.Watcher = b
	return s, configMapsOf(t, s), b
}

// A probe is a follower made of functions.
type probe struct {
	reset, done func()
	apply       func(feed.Event)
}

func (p probe) Reset() {
	if p.reset != nil {
		p.reset()
	}
}

func (p probe) Done() {
	if p.done != nil {
		p.done()
	}
}

func (p probe) Apply(e feed.Event) {
	if p.apply != nil {
		p.apply(e)
	}
}

// recount counts the stored objects, without fences.
func recount(t testing.TB, s *Store) map[cluster.Name]map[keys.Resource]feed.Usage {
	t.Helper()
	r, err := s.RawClient().Get(t.Context(), s.prefix+"/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	all := map[cluster.Name]map[keys.Resource]feed.Usage{}
	for _, kv := range r.Kvs {
		p := strings.Split(string(kv.Key), "/") // "", registry, root, group, resource, identity, cluster, [namespace,] name
		if len(p) < 8 || len(p) > 9 || p[4] == "fences" {
			continue
		}
		res := keys.Resource{Root: keys.Root(p[2]), Group: strings.TrimSuffix(p[3], "core"), Resource: p[4], Identity: strings.TrimSuffix(p[5], "-")}
		c := cluster.Name(p[6])
		if all[c] == nil {
			all[c] = map[keys.Resource]feed.Usage{}
		}
		u := all[c][res]
		all[c][res] = feed.Usage{Objects: u.Objects + 1, Bytes: u.Bytes + int64(len(kv.Value))}
	}
	return all
}

func exact(t testing.TB, s *Store, when string) {
	t.Helper()
	storetest.CatchUp(t, s)
	want := recount(t, s)
	for c := range want {
		if got := s.Feed().Ledger().Of(c); !maps.Equal(got, want[c]) {
			t.Errorf("%s: the ledger says of %s %v, want %v", when, c, got, want[c])
		}
	}
	if n := s.Feed().Ledger().Clusters(); n != len(want) {
		t.Errorf("%s: the ledger has %d clusters, want %d", when, n, len(want))
	}
}

// The counts of the ledger are exact after random changes, restarts, and gaps in the watch.
func TestLedgerIsExact(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r, dir := rand.New(rand.NewPCG(seed, seed)), t.TempDir()
	for round := range 4 {
		s, cm, b := openBreakable(t, dir)
		own := rand.New(rand.NewPCG(seed, uint64(round))) // the feed runs concurrently, with its own source
		b.before = func(n int) {
			if n == 1 { // compaction removes the events of the gap
				chaos(t, s, cm, own, 20)
				rev, err := s.RawClient().Get(t.Context(), "x")
				if err == nil {
					_, err = s.RawClient().Compact(t.Context(), rev.Header.Revision, clientv3.WithCompactPhysical())
				}
				if err != nil {
					t.Error(err)
				}
			}
		}
		storetest.StartFeeds(t, s)
		if round == 0 {
			create(t, s, "c1", "c2", "c3")
		}
		exact(t, s, "after a start")
		chaos(t, s, cm, r, 100)
		exact(t, s, "after changes")
		b.lose()
		chaos(t, s, cm, r, 50)
		b.again(t, 2) // the watch fails once because of the compaction
		exact(t, s, "after a gap")
		s.Close()
	}
}

// chaos changes config maps and widgets in every way.
func chaos(t testing.TB, s *Store, cm storage.Interface, r *rand.Rand, n int) {
	for range n {
		c := []cluster.Name{"c1", "c2", "c3"}[r.IntN(3)]
		name := fmt.Sprint("x", r.IntN(6))
		value := strings.Repeat("v", r.IntN(200))
		var err error
		switch r.IntN(5) {
		case 0:
			err = cm.Delete(in(c), cmRoot+"/ns/"+name, &corev1.ConfigMap{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
		case 1, 2:
			err = cm.GuaranteedUpdate(in(c), cmRoot+"/ns/"+name, &corev1.ConfigMap{}, true, nil, func(runtime.Object, storage.ResponseMeta) (runtime.Object, *uint64, error) {
				return configMap("ns", name, value), nil, nil
			}, nil)
		case 3:
			_, err = s.Commit(t.Context(), []Write{
				{Resource: keys.CustomResource(widgets, ""), Cluster: c, Object: widget("ns", name, value)},
				{Resource: keys.CustomResource(widgets, "1f0e"), Cluster: c, Object: widget("ns", name, value)},
			})
		default: // including values that no server writes
			_, err = s.RawClient().Put(t.Context(), s.prefix+keys.CustomResource(widgets, "2e7a").Key(c, "ns", name).Path(), strings.Repeat("x", r.IntN(2)))
		}
		if err != nil && !storage.IsNotFound(err) && !storage.IsExist(err) {
			t.Error(err)
		}
	}
}

// A revision is applied only after all its events, also if a transaction has several objects,
// and while the feed catches up, when etcd splits the events.
func TestAppliedRevision(t *testing.T) {
	s, _, b := openBreakable(t, t.TempDir())
	defer s.Close()
	const backlog = 2500 // more events than etcd sends at once
	key := s.prefix + keys.NativeResource(configMaps).Key("c1", "ns", "x").Path()
	b.before = func(int) {
		for range backlog {
			if _, err := s.RawClient().Put(t.Context(), key, "{"); err != nil {
				t.Error(err)
			}
		}
	}
	early, seen := 0, 0
	s.Feed().Follow(probe{apply: func(e feed.Event) {
		if seen++; s.Feed().Reached(e.Revision) {
			early++
		}
	}})
	storetest.StartFeeds(t, s)
	b.again(t, 0)
	create(t, s, "c1")
	r := keys.CustomResource(widgets, "")
	rev, err := s.Commit(t.Context(), []Write{
		{Resource: r, Cluster: "c1", Object: widget("ns", "x", "")},
		{Resource: keys.CustomResource(widgets, "1f0e"), Cluster: "c1", Object: widget("ns", "x", "")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Feed().WaitFor(t.Context(), rev); err != nil {
		t.Fatal(err)
	}
	if early > 0 || seen < backlog+3 {
		t.Errorf("%d of %d changes came after the feed had said that they were applied", early, seen)
	}
}

// Fresh waits for the commits of this process and reports whether the feed has applied them.
// It also reports true if they were applied before the call, because they may not have been
// applied when the decision was made.
func TestFresh(t *testing.T) {
	s, cm, _ := openBreakable(t, t.TempDir())
	defer s.Close()
	hold, held := make(chan struct{}), make(chan struct{}, 1)
	s.Feed().Follow(probe{apply: func(e feed.Event) {
		if e.Key.Name == "held" {
			held <- struct{}{}
			<-hold
		}
	}})
	storetest.StartFeeds(t, s)
	create(t, s, "c1")
	storetest.CatchUp(t, s)
	if !s.Feed().Fresh(t.Context()) {
		t.Error("everything was applied")
	}
	if err := cm.Create(in("c1"), cmRoot+"/ns/held", configMap("ns", "held", ""), nil, 0); err != nil {
		t.Fatal(err)
	}
	<-held
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if s.Feed().Fresh(ended) || !errors.Is(s.Feed().CatchUp(ended), context.Canceled) {
		t.Error("nothing was applied while the feed was held")
	}
	if err := s.Feed().WaitFor(ended, s.guard.latest.Load()); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait that is called off: %v", err)
	}
	close(hold)
	if err := s.Feed().CatchUp(t.Context()); err != nil || !s.Feed().Fresh(t.Context()) {
		t.Error("it is not held any more", err)
	}
}

// After a gap in the watch, the store knows all fences, including deletions in the gap.
func TestFencesAfterGap(t *testing.T) {
	s, _, b := openBreakable(t, t.TempDir())
	defer s.Close()
	resets := 0
	s.Feed().Follow(probe{reset: func() {
		if resets++; resets == 2 {
			behind(t, s, "c1", Gone)
			behind(t, s, "c2", Terminating)
			behind(t, s, "c3", Active)
		}
	}})
	storetest.StartFeeds(t, s)
	create(t, s, "c1", "c2")
	storetest.CatchUp(t, s)
	b.lose()
	b.again(t, 1)
	for c, want := range map[cluster.Name]State{"c1": Gone, "c2": Terminating, "c3": Active} {
		if got, err := s.State(t.Context(), c); err != nil || got != want {
			t.Errorf("%s is %q, %v, want %q", c, got, err, want)
		}
	}
	if _, known := s.guard.fences.get("c1"); known {
		t.Error("the fence of a cluster that is gone is kept")
	}
}

func valueOf(o runtime.Object) (string, error) {
	v := o.(*corev1.ConfigMap).Data["v"]
	switch v {
	case "refuse":
		return "", errors.New("refused")
	case "panic":
		panic("cannot convert")
	}
	return v, nil
}

// A table follows its resource through events and gaps, and reports each changed row.
func TestTable(t *testing.T) {
	s, cm, b := openBreakable(t, t.TempDir())
	defer s.Close()
	values := feed.NewTable(s.Feed(), keys.NativeResource(configMaps), valueOf)
	resets, during := 0, ""
	key := s.prefix + keys.NativeResource(configMaps).Key("c1", "ns", "y").Path()
	s.Feed().Follow(probe{
		reset: func() {
			if resets++; resets == 2 {
				if _, err := s.RawClient().Delete(t.Context(), key); err != nil {
					t.Error(err)
				}
			}
		},
		apply: func(feed.Event) {
			if resets == 2 {
				during, _ = values.Get("c1", "ns", "y")
			}
		},
	})
	storetest.StartFeeds(t, s)
	create(t, s, "c1", "c2")
	told := make(chan keys.Key, 100)
	unsubscribe := values.Subscribe(func(k keys.Key) { told <- k })
	set := func(c cluster.Name, name, value string) {
		t.Helper()
		if err := cm.GuaranteedUpdate(in(c), cmRoot+"/ns/"+name, &corev1.ConfigMap{}, true, nil, func(runtime.Object, storage.ResponseMeta) (runtime.Object, *uint64, error) {
			return configMap("ns", name, value), nil, nil
		}, nil); err != nil {
			t.Fatal(err)
		}
		if k := <-told; k.Cluster != c || k.Name != name {
			t.Errorf("told of %v, want %s in %s", k, name, c)
		}
		storetest.CatchUp(t, s)
	}
	set("c1", "x", "1")
	set("c1", "x", "2")
	set("c1", "y", "3")
	set("c2", "x", "4")
	if got, _ := values.Get("c1", "ns", "x"); got != "2" || len(values.List("c1", "")) != 2 || len(values.List("c1", "other")) != 0 || len(values.Keys()) != 3 {
		t.Errorf("got %q, %v, %v", got, values.List("c1", ""), values.Keys())
	}
	for _, bad := range []string{"refuse", "panic"} {
		set("c2", "x", "5")
		set("c2", "x", bad)
		if got, ok := values.Get("c2", "ns", "x"); ok {
			t.Errorf("%s: the row is still %q", bad, got)
		}
	}
	b.lose()
	for gone := false; !gone; {
		k := <-told
		gone = k.Name == "y"
	}
	if _, ok := values.Get("c1", "ns", "y"); ok || during != "3" {
		t.Errorf("what went in a gap: there %v after it, and %q while reading again", ok, during)
	}
	unsubscribe()
	storetest.CatchUp(t, s)
	for len(told) > 0 {
		<-told
	}
	if err := cm.Create(in("c1"), cmRoot+"/ns/z", configMap("ns", "z", ""), nil, 0); err != nil {
		t.Fatal(err)
	}
	storetest.CatchUp(t, s)
	if len(told) > 0 {
		t.Errorf("told after the end of the subscription: %v", <-told)
	}
}
