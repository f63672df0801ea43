package informer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
)

// pods returns a cache of a shelf that runs until the test ends.
func pods(t *testing.T, s *shelf, change ...func(*KindConfig[*corev1.Pod])) *Kind[*corev1.Pod] {
	config := KindConfig[*corev1.Pod]{Name: "pods", ListerWatcher: s, Saver: s.patch}
	for _, f := range change {
		f(&config)
	}
	k := NewKind(config)
	run(t, k)
	return k
}

func run(t *testing.T, k *Kind[*corev1.Pod]) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		k.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	synctest.Wait()
}

// woken collects the keys that a source wakes.
type woken struct {
	mu   sync.Mutex
	keys map[control.Key]int
}

func listen(t *testing.T, s control.Source) *woken {
	w := &woken{keys: map[control.Key]int{}}
	t.Cleanup(s.Subscribe(func(k control.Key) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.keys[k]++
	}))
	return w
}

// take returns the keys woken since the last call, marked if more than once.
func (w *woken) take() []string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	var keys []string
	for k, times := range w.keys {
		keys = append(keys, k.String()+strings.Repeat(" again", times-1))
	}
	clear(w.keys)
	slices.Sort(keys)
	return keys
}

func isReady(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// checkNodes checks that a cache holds these objects, one per cluster, and no others.
func checkNodes(t *testing.T, step string, k *Kind[*corev1.Pod], nodes map[control.Key]string) {
	t.Helper()
	for key, node := range nodes {
		if o := k.Get(key); o == nil || o.Spec.NodeName != node {
			t.Errorf("%s: %s is %v, want node %s", step, key, o, node)
		}
		if l := k.List(key.Cluster); len(l) != 1 || control.KeyOf(l[0]) != key {
			t.Errorf("%s: cluster %s lists %v", step, key.Cluster, l)
		}
	}
	if all := k.List(cluster.All); len(all) != len(nodes) {
		t.Errorf("%s: %d objects in all, want %d", step, len(all), len(nodes))
	}
}

func TestTenantsWithOneNameStayApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tenants = 20
		s := newShelf(t)
		want := map[control.Key]string{}
		put := func(i int, node string) {
			p := pod(fmt.Sprintf("tenant-%d", i), "ns", "same")
			p.Spec.NodeName = node
			s.put(p)
			want[control.KeyOf(p)] = node
		}
		drop := func(i int) {
			k := control.Key{Cluster: cluster.Name(fmt.Sprintf("tenant-%d", i)), Namespace: "ns", Name: "same"}
			s.remove(k)
			delete(want, k)
		}
		for i := range tenants {
			put(i, "listed")
		}
		k := pods(t, s)
		w := listen(t, k.Changed())
		check := func(step string, woken ...string) {
			t.Helper()
			if diff := cmp.Diff(woken, w.take()); diff != "" {
				t.Errorf("%s: woken keys differ (-want +got):\n%s", step, diff)
			}
			checkNodes(t, step, k, want)
		}
		var all []string
		for key := range want {
			all = append(all, key.String())
		}
		slices.Sort(all)
		check("list", all...)

		put(3, "watched")
		drop(4)
		put(tenants, "new")
		check("watch", "tenant-20|ns/same", "tenant-3|ns/same", "tenant-4|ns/same")

		s.interrupt(func() {
			put(5, "missed")
			drop(6)
			put(tenants+1, "missed too")
		})
		<-k.Ready()
		waitForList(s, 2)
		// All others are unchanged, and wake no loop.
		check("list again", "tenant-21|ns/same", "tenant-5|ns/same", "tenant-6|ns/same")

		put(7, "watched again")
		check("watch again", "tenant-7|ns/same")
		if o := k.Get(control.Key{Cluster: "tenant-0", Namespace: "other", Name: "same"}); o != nil {
			t.Errorf("found %v in another namespace", o)
		}
	})
}

// waitForList lets the time pass that a Kind waits before it lists again.
func waitForList(s *shelf, lists int) {
	for range 1000 {
		s.mu.Lock()
		done := s.lists >= lists && len(s.watches) > 0
		s.mu.Unlock()
		if done {
			return
		}
		tick()
	}
	s.t.Errorf("no list number %d", lists)
}

func TestAKindIsReadyAfterItsFirstList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, hold := newShelf(t), make(chan struct{})
		s.put(pod("a1", "ns", "x"))
		s.hold = hold
		k := pods(t, s)
		var runs []bool
		start(t, control.Loop{Name: "l", On: []control.Source{k.Read(), readyOnce(key("a1", "x"))}, Do: func(context.Context, control.Key) error {
			runs = append(runs, k.Get(control.Key{Cluster: "a1", Namespace: "ns", Name: "x"}) != nil)
			return nil
		}})
		if isReady(k.Ready()) || len(runs) > 0 {
			t.Fatalf("ready before the list: %v, %d runs", isReady(k.Ready()), len(runs))
		}
		close(hold)
		synctest.Wait()
		if !slices.Equal(runs, []bool{true}) {
			t.Errorf("runs that saw the object: %v, want one", runs)
		}
	})
}

// readyOnce is a source that wakes one key.
func readyOnce(k control.Key) control.Source {
	return control.Source{Subscribe: func(wake func(control.Key)) func() { wake(k); return nil }}
}

func TestRunWaitsForItsList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, hold := newShelf(t), make(chan struct{})
		s.hold = hold
		k := NewKind(KindConfig[*corev1.Pod]{Name: "pods", ListerWatcher: s})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); k.Run(ctx) }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		if isReady(ended) {
			t.Error("returned while a list was running")
		}
		close(hold)
		<-ended
	})
}

func TestIndexes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(t)
		on := func(c, name, node string) {
			p := pod(c, "ns", name)
			p.Spec.NodeName = node
			s.put(p)
		}
		on("a1", "x", "n1")
		on("b1", "x", "n1")
		on("b1", "y", "n2")
		k := pods(t, s)
		if err := k.Index("node", func(p *corev1.Pod) []string {
			if p.Name == "bad" {
				panic("bad object")
			}
			return []string{p.Spec.NodeName, "any", "any"}
		}); err != nil {
			t.Fatal(err)
		}
		if err := k.Index("node", func(*corev1.Pod) []string { return nil }); err == nil || !strings.Contains(err.Error(), "pods") {
			t.Errorf("second index of one name: %v", err)
		}
		check := func(value string, want ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for _, key := range k.By("node", value) {
				got = append(got, key.String())
			}
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("by %s (-want +got):\n%s", value, diff)
			}
		}
		check("n1", "a1|ns/x", "b1|ns/x")
		on("a1", "x", "n2")
		on("c1", "z", "n1")
		on("c1", "bad", "n1")
		check("n1", "b1|ns/x", "c1|ns/z")
		check("n2", "a1|ns/x", "b1|ns/y")
		check("any", "a1|ns/x", "b1|ns/x", "b1|ns/y", "c1|ns/z")
		s.remove(control.Key{Cluster: "b1", Namespace: "ns", Name: "y"})
		check("n2", "a1|ns/x")
		check("none")
		if k.Get(control.Key{Cluster: "c1", Namespace: "ns", Name: "bad"}) == nil {
			t.Error("an object that an index cannot file is lost")
		}
		defer func() {
			if r := fmt.Sprint(recover()); !strings.Contains(r, `no index "nodes"`) {
				t.Errorf("reading an unknown index: %s", r)
			}
		}()
		k.By("nodes", "n1")
	})
}

func TestWakesForWhatAnObjectWasAndIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(t)
		on := func(c, node string) {
			p := pod(c, "ns", "x")
			p.Spec.NodeName = node
			s.put(p)
		}
		on("a1", "n1")
		k := pods(t, s)
		source := k.Wakes(func(p *corev1.Pod) []control.Key {
			if p.Spec.NodeName == "bad" {
				panic("bad object")
			}
			return []control.Key{{Cluster: "nodes", Name: p.Spec.NodeName}}
		})
		w := listen(t, source)
		var late []control.Key
		unsubscribe := source.Subscribe(func(k control.Key) { late = append(late, k) })
		unsubscribe()
		for _, step := range []struct {
			do   func()
			want []string
		}{
			{func() {}, []string{"nodes|n1"}}, // what existed before
			{func() { on("a1", "n2") }, []string{"nodes|n1", "nodes|n2"}},
			{func() { on("a1", "n2") }, []string{"nodes|n2"}},
			{func() { on("b1", "bad") }, nil},
			{func() { on("b1", "n3") }, []string{"nodes|n3"}},
			{func() { s.remove(control.Key{Cluster: "a1", Namespace: "ns", Name: "x"}) }, []string{"nodes|n2"}},
		} {
			step.do()
			if diff := cmp.Diff(step.want, w.take()); diff != "" {
				t.Errorf("woken keys differ (-want +got):\n%s", diff)
			}
		}
		if len(late) != 1 {
			t.Errorf("woken %v, want only what existed, as the subscription ended", late)
		}
	})
}

// serialized stands for an object as watches in process send it.
type serialized struct{ *corev1.Pod }

func (s serialized) CacheEncode(runtime.Identifier, func(runtime.Object, io.Writer) error, io.Writer) error {
	return errors.New("nothing to encode here")
}
func (s serialized) GetObject() runtime.Object { return s.DeepCopy() }

func TestCacheableObjectsAreUnwrapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(t)
		s.wrap = func(o runtime.Object) runtime.Object { return serialized{o.(*corev1.Pod)} }
		k := pods(t, s)
		s.put(pod("a1", "ns", "x"))
		s.put(pod("a1", "ns", "y"))
		s.remove(control.Key{Cluster: "a1", Namespace: "ns", Name: "x"})
		synctest.Wait()
		if l := k.List("a1"); len(l) != 1 || l[0].Name != "y" {
			t.Errorf("the cache holds %v, want y", l)
		}
	})
}

func TestTransform(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(t)
		p := pod("a1", "ns", "first")
		p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
		s.put(p)
		k := pods(t, s, func(c *KindConfig[*corev1.Pod]) {
			c.Transform = func(p *corev1.Pod) *corev1.Pod {
				if p.Name == "bad" {
					panic("bad object")
				}
				kept := *p
				kept.ManagedFields = nil
				return &kept
			}
		})
		for _, name := range []string{"watched", "bad"} {
			p := pod("a1", "ns", name)
			p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
			s.put(p)
		}
		synctest.Wait()
		for name, fields := range map[string]int{"first": 0, "watched": 0, "bad": 1} {
			if o := k.Get(control.Key{Cluster: "a1", Namespace: "ns", Name: name}); o == nil || len(o.ManagedFields) != fields {
				t.Errorf("%s: got %v, want %d managed fields", name, o, fields)
			}
		}
	})
}

func TestALoopConverges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(t)
		k := pods(t, s)
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			control.Runner{}.Run(ctx, control.Loop{Name: "assign", On: []control.Source{k.Changed()}, Do: func(ctx context.Context, key control.Key) error {
				p := k.Get(key)
				if p == nil {
					return nil
				}
				next := p.DeepCopy()
				next.Spec.NodeName = "node-of-" + string(key.Cluster)
				next.Status.Phase = "Running"
				return k.Save(ctx, p, next)
			}})
		}()
		for i := range 200 {
			s.put(pod(fmt.Sprintf("tenant-%d", i), "ns", "same"))
		}
		for range 100 {
			tick()
		}
		for _, p := range k.List(cluster.All) {
			if p.Spec.NodeName != "node-of-"+string(cluster.Of(p)) || p.Status.Phase != "Running" {
				t.Errorf("%s: node %q, phase %q", control.KeyOf(p), p.Spec.NodeName, p.Status.Phase)
			}
		}
		if n := len(k.List(cluster.All)); n != 200 {
			t.Errorf("%d objects, want 200", n)
		}
		cancel()
		<-ended
	})
}

func TestAnEventThatIsNoObjectOfTheKindHidesNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(t)
		s.wrap = func(o runtime.Object) runtime.Object {
			p := o.(*corev1.Pod)
			switch p.Name {
			case "service":
				return &corev1.Service{ObjectMeta: p.ObjectMeta}
			case "stray":
				p.Annotations = nil
			}
			return p
		}
		k := pods(t, s)
		for _, name := range []string{"a", "service", "b", "stray", "c"} {
			s.put(pod("a1", "ns", name))
		}
		s.remove(control.Key{Cluster: "a1", Namespace: "ns", Name: "stray"})
		s.remove(control.Key{Cluster: "a1", Namespace: "ns", Name: "c"})
		synctest.Wait()
		var got []string
		for _, p := range k.List(cluster.All) {
			got = append(got, p.Name)
		}
		if slices.Sort(got); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("the cache holds %v, want a and b", got)
		}
	})
}

func TestListsMustSayWhichClustersObjectsBelongTo(t *testing.T) {
	to := sink[*corev1.Pod]{NewKind(KindConfig[*corev1.Pod]{Name: "pods"}), logr.Discard()}
	stray := pod("", "ns", "x")
	stray.Annotations = nil
	for want, list := range map[string][]any{
		"has no annotation with its logical cluster": {pod("a1", "ns", "x"), stray},
		"have the same cluster":                      {pod("a1", "ns", "x"), pod("a1", "ns", "x")},
		"got a *v1.Service":                          {&corev1.Service{}},
	} {
		if err := to.Replace(list, "1"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if isReady(to.k.Ready()) || len(to.k.List(cluster.All)) > 0 {
		t.Error("a list that was refused is shown")
	}
}
