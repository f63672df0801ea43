package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/storetest"
)

// A mirror is a follower that holds the names of all config maps. On request, it panics while
// it holds its lock.
type mirror struct {
	panics func(what string) bool

	mu              sync.Mutex
	names, building map[string]bool
	resets          int
}

func (m *mirror) check(what string) {
	if m.panics != nil && m.panics(what) {
		panic("a fault of its own")
	}
}

func (m *mirror) Reset() {
	m.check("Reset")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.building = map[string]bool{}
	m.resets++
}

func (m *mirror) Apply(e feed.Event) {
	if e.Key.Resource != keys.NativeResource(configMaps) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	to := m.names
	if m.building != nil {
		to = m.building
	}
	delete(to, e.Key.Name) // half of a change
	m.check(e.Key.Name)
	if !e.Deleted() {
		to[e.Key.Name] = true
	}
}

func (m *mirror) Done() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.names, m.building = m.building, nil
}

func (m *mirror) has() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []string
	for name := range m.names {
		all = append(all, name)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// A projection that panics is rebuilt together with those after it. Projections before it,
// and watches, continue. Decisions wait. A key on which it always panics is skipped.
func TestProjectionsThatPanicAreRebuilt(t *testing.T) {
	s, cm, b := openBreakable(t, t.TempDir())
	defer s.Close()
	var once sync.Once
	before, after := &mirror{}, &mirror{}
	bad := &mirror{panics: func(what string) (now bool) {
		if what == "once" {
			once.Do(func() { now = true })
		}
		return now || what == "poison"
	}}
	for _, f := range []*mirror{before, bad, after} {
		s.Feed().Follow(f)
	}
	storetest.StartFeeds(t, s)
	create(t, s, "c1")
	names := []string{"a", "b", "once", "c", "poison", "d"}
	for _, name := range names {
		if err := cm.Create(in("c1"), cmRoot+"/ns/"+name, configMap("ns", name, ""), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	storetest.CatchUp(t, s)
	for f, want := range map[*mirror]string{before: "a b c d once poison", bad: "a b c d once", after: "a b c d once poison"} {
		if f.has() != want {
			t.Errorf("has %q, want %q", f.has(), want)
		}
	}
	if before.resets != 1 || bad.resets < 3 || after.resets < 3 {
		t.Errorf("rebuilt %d, %d and %d times", before.resets, bad.resets, after.resets)
	}
	if err := s.Feed().InStep(); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"poison", "a"} {
		if err := cm.Delete(in("c1"), cmRoot+"/ns/"+name, &corev1.ConfigMap{}, nil, func(context.Context, runtime.Object) error { return nil }, nil, storage.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	storetest.CatchUp(t, s)
	if bad.has() != "b c d once" || after.has() != "b c d once" {
		t.Errorf("after deletions: %q and %q", bad.has(), after.has())
	}
	if n := len(b.began); n != 1 {
		t.Errorf("the feed began %d watches", n)
	}
}

// The readiness check names a projection that cannot be rebuilt. Decisions do not use it, and
// the other projections continue.
func TestAProjectionThatCannotBeRebuiltIsNamed(t *testing.T) {
	s, cm, _ := openBreakable(t, t.TempDir())
	defer s.Close()
	broken := false
	seen := make(chan string, 100)
	s.Feed().Follow(probe{apply: func(e feed.Event) {
		if e.Key.Resource == keys.NativeResource(configMaps) {
			seen <- e.Key.Name
		}
	}})
	s.Feed().Follow(&mirror{panics: func(what string) bool {
		broken = broken || what == "bad"
		return broken
	}})
	storetest.StartFeeds(t, s)
	create(t, s, "c1")
	for _, name := range []string{"bad", "other"} {
		if err := cm.Create(in("c1"), cmRoot+"/ns/"+name, configMap("ns", name, ""), nil, 0); err != nil {
			t.Fatal(err)
		}
		if got := <-seen; got != name {
			t.Errorf("the other projection got %s, want %s", got, name)
		}
	}
	for s.Feed().InStep() == nil {
		if t.Context().Err() != nil {
			t.Fatal("it is in step")
		}
	}
	if err := s.Feed().InStep(); !strings.Contains(err.Error(), "*store.mirror") {
		t.Error(err)
	}
	if s.Feed().Reached(s.guard.latest.Load()) {
		t.Error("everything counts as applied")
	}
}

// A value that cannot be decrypted is delivered later, without a change of the object, to
// each projection that needs it.
func TestProjectionsAskAgain(t *testing.T) {
	s, service := openEncrypted(t)
	cm := configMapsOf(t, s)
	table := feed.NewTable(s.Feed(), keys.NativeResource(configMaps), func(o runtime.Object) (string, error) {
		m, ok := o.(*corev1.ConfigMap)
		if !ok {
			return "", fmt.Errorf("%T", o)
		}
		return m.Data["v"], nil
	})
	changed := make(chan keys.Key, 100)
	finalizers := make(chan error, 100)
	s.Feed().Follow(probe{apply: func(e feed.Event) {
		if e.Key.Resource == keys.NativeResource(configMaps) {
			_, err := e.Metadata(context.Background())
			finalizers <- err
		}
	}})
	storetest.StartFeeds(t, s)
	create(t, s, "c1")
	unsubscribe := table.Subscribe(func(k keys.Key) { changed <- k })
	defer unsubscribe()
	service.away.Store(true)
	if err := cm.Create(in("c1"), cmRoot+"/ns/x", configMap("ns", "x", "v"), nil, 0); err != nil {
		t.Fatal(err)
	}
	storetest.CatchUp(t, s)
	<-changed
	if _, ok := table.Get("c1", "ns", "x"); ok {
		t.Error("what cannot be decrypted is in the table")
	}
	if err := <-finalizers; !errors.Is(err, errAway) {
		t.Errorf("metadata: %v", err)
	}
	service.away.Store(false)
	<-changed
	if v, ok := table.Get("c1", "ns", "x"); !ok || v != "v" {
		t.Errorf("the table has %q, %v", v, ok)
	}
	for err := errAway; err != nil; {
		err = <-finalizers
	}
}

// Start returns the error of a projection that cannot be built.
func TestStartNamesAProjectionThatCannotBeBuilt(t *testing.T) {
	s, _, _ := openBreakable(t, t.TempDir())
	defer s.Close()
	s.Feed().Follow(&mirror{panics: func(string) bool { return true }})
	if err := s.Feed().Start(t.Context()); err == nil || !strings.Contains(err.Error(), "*store.mirror") {
		t.Errorf("Start: %v", err)
	}
}
