package watchcache

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/registry"
	"github.com/unforked/kcp/internal/storage/storetest"
)

// fill creates n config maps in a namespace of c1 and deletes nine of ten.
func fill(t *testing.T, cm storage.Interface, namespace string, n int) {
	t.Helper()
	for i := range n {
		at := fmt.Sprintf("%s/%s/x%d", cmRoot, namespace, i)
		if err := cm.Create(in("c1"), at, configMap(namespace, fmt.Sprint("x", i), strings.Repeat("x", 1000)), &corev1.ConfigMap{}, 0); err != nil {
			t.Fatal(err)
		}
		if i%10 == 0 {
			continue
		}
		if err := cm.Delete(in("c1"), at, &corev1.ConfigMap{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// generationOf returns the current cache of cm.
func generationOf(cm storage.Interface) *generation {
	g := cm.(*registry.Storage).Interface.(*nativeCache).use()
	g.users.Done()
	return g
}

// A cache with mostly deleted objects is replaced once there are few changes. Its watches end
// and can be resumed.
func TestHistoryGoes(t *testing.T) {
	s, cm, stop := open(t, t.TempDir())
	defer stop()
	create(t, s, "c1")
	s.histories.mu.Lock()
	s.histories.limit = 10 << 10
	s.histories.mu.Unlock()
	var last corev1.ConfigMap
	if err := cm.Create(in("c1"), cmRoot+"/ns/last", configMap("ns", "last", ""), &last, 0); err != nil {
		t.Fatal(err)
	}
	sweep := func() {
		storetest.CatchUp(t, s)
		s.histories.sweep(t.Context())
	}
	sweep()
	first := generationOf(cm)
	fill(t, cm, "ns", 50)
	sweep()
	fill(t, cm, "tail", 10) // a small change, which the next cache has to contain
	for range 2 {
		if sweep(); generationOf(cm) != first {
			t.Fatal("a cache went whose changes are recent")
		}
	}
	before := &corev1.ConfigMapList{}
	if err := cm.GetList(in("c1"), cmRoot, everything(""), before); err != nil {
		t.Fatal(err)
	}
	w, err := cm.Watch(in("c1"), cmRoot, everything(before.ResourceVersion))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if sweep(); generationOf(cm) == first {
		t.Fatal("a cache of what is gone was kept")
	}
	for e, more := received(t, w); more; e, more = received(t, w) {
		t.Errorf("got %v", e)
	}
	after := &corev1.ConfigMapList{}
	if err := cm.GetList(in("c1"), cmRoot, everything("0"), after); err != nil || len(after.Items) != len(before.Items) {
		t.Errorf("%d objects before, %d after, %v", len(before.Items), len(after.Items), err)
	}
	again, err := cm.Watch(in("c1"), cmRoot, everything(before.ResourceVersion))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Stop()
	if err := cm.Create(in("c1"), cmRoot+"/ns/new", configMap("ns", "new", ""), &corev1.ConfigMap{}, 0); err != nil {
		t.Fatal(err)
	}
	e := next(t, again)
	if o, err := meta.Accessor(e.Object); e.Type != watch.Added || err != nil || o.GetName() != "new" {
		t.Errorf("got %v", e)
	}
	second := generationOf(cm)
	for range 3 {
		if sweep(); generationOf(cm) != second {
			t.Fatal("a cache went that has little history")
		}
	}
}

// Such a cache is replaced after some time even if changes continue.
func TestHistoryGoesBesideOtherChanges(t *testing.T) {
	s, cm, stop := open(t, t.TempDir())
	defer stop()
	create(t, s, "c1")
	s.histories.mu.Lock()
	s.histories.limit = 10 << 10
	s.histories.mu.Unlock()
	first := generationOf(cm)
	fill(t, cm, "ns", 100)
	for i := range 10 {
		storetest.CatchUp(t, s)
		if s.histories.sweep(t.Context()); generationOf(cm) != first {
			return
		}
		fill(t, cm, fmt.Sprint("other", i), 5)
	}
	t.Error("the cache was kept")
}

// A cache with mostly live objects is not replaced.
func TestLiveOutweighsHistory(t *testing.T) {
	s, cm, stop := open(t, t.TempDir())
	defer stop()
	create(t, s, "c1")
	s.histories.mu.Lock()
	s.histories.limit = 1 << 10
	s.histories.mu.Unlock()
	if err := cm.Create(in("c1"), cmRoot+"/ns/large", configMap("ns", "large", strings.Repeat("x", 200<<10)), &corev1.ConfigMap{}, 0); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		storetest.CatchUp(t, s)
		s.histories.sweep(t.Context())
	}
	s.histories.mu.Lock()
	s.histories.of[keys.NativeResource(configMaps)].most = 0 // ignore the creation
	s.histories.mu.Unlock()
	first := generationOf(cm)
	fill(t, cm, "ns", 20)
	for range 4 {
		storetest.CatchUp(t, s)
		s.histories.sweep(t.Context())
	}
	if generationOf(cm) != first {
		t.Error("the cache went")
	}
}

// While caches are replaced repeatedly, reads and writes succeed, and a client with list and
// watch loses no event.
func TestRenewUnderLoad(t *testing.T) {
	s, cm, stop := open(t, t.TempDir())
	defer stop()
	create(t, s, "c1")
	n := cm.(*registry.Storage).Interface.(*nativeCache)
	if err := generationOf(cm).ready(t.Context()); err != nil { // the new cache has no earlier events
		t.Fatal(err)
	}
	began := s.Latest()
	const writes = 300
	again := make(chan struct{}) // closed when a watch has ended
	interrupted := sync.OnceFunc(func() { close(again) })
	var writers sync.WaitGroup
	writers.Go(func() {
		for i := range writes {
			if i == writes/2 {
				<-again
			}
			name := fmt.Sprint("x", i)
			if err := cm.Create(in("c1"), cmRoot+"/ns/"+name, configMap("ns", name, ""), &corev1.ConfigMap{}, 0); err != nil {
				t.Error(err)
			}
			if err := cm.Get(in("c1"), cmRoot+"/ns/"+name, storage.GetOptions{}, &corev1.ConfigMap{}); err != nil {
				t.Error(err)
			}
			list := &corev1.ConfigMapList{}
			if err := cm.GetList(in("c1"), cmRoot, everything(""), list); err != nil || len(list.Items) != i+1 {
				t.Errorf("%d of %d objects: %v", len(list.Items), i+1, err)
			}
		}
	})
	done := make(chan struct{})
	var renewer sync.WaitGroup
	renewer.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := n.renew(t.Context(), began); err != nil {
				t.Error(err)
				interrupted() // replacements have ended
				return
			}
		}
	})
	seen, at, watches := map[string]bool{}, fmt.Sprint(began), 0
	for len(seen) < writes && !t.Failed() {
		w, err := cm.Watch(in("c1"), cmRoot, everything(at))
		if err != nil {
			t.Fatal(err)
		}
		if watches++; watches == 2 {
			interrupted()
		}
		for e, more := received(t, w); more; e, more = received(t, w) {
			o, err := meta.Accessor(e.Object)
			if err != nil {
				t.Fatalf("got %v", e)
			}
			if e.Type != watch.Added || seen[o.GetName()] {
				t.Errorf("got %s %s", e.Type, o.GetName())
			}
			seen[o.GetName()], at = true, o.GetResourceVersion()
			if len(seen) == writes {
				w.Stop()
			}
		}
	}
	interrupted() // in case the test has failed
	writers.Wait()
	close(done)
	renewer.Wait()
}
