// Package informer caches one resource of all logical clusters for the loops of embedding
// programs. The loops of the server itself follow the change feed of the store instead, and may
// not import this package.
package informer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
)

// A Kind is a cache of one resource in all logical clusters. All methods are safe
// for concurrent use. Objects that it returns are shared: copy them before changing them.
//
// It uses a Reflector with its own store. The informers of client-go key objects by
// namespace and name, so objects of two tenants would collide.
type Kind[T control.Object] struct {
	config  KindConfig[T]
	objects cache.ThreadSafeStore // by the string of their keys

	ready chan struct{} // closed once the first list is in the cache
	once  sync.Once

	mu          sync.Mutex
	subscribers []*subscriber[T] // copied on write
}

// KindConfig configures a [Kind].
type KindConfig[T control.Object] struct {
	// Name is the resource, for logs and errors.
	Name string

	// ListerWatcher lists and watches the resource in all logical clusters.
	// Each object carries its cluster, see [cluster.Of]. In-process watches may
	// send a runtime.CacheableObject instead of an object.
	ListerWatcher cache.ListerWatcher

	// Saver writes for [Kind.Save]. If it is nil, the cache is read-only.
	Saver Saver

	// Transform, if not nil, returns the object to keep in place of the one that
	// was read, for example without managed fields. It must copy an object before
	// changing it if the ListerWatcher shares its objects. It must not change the
	// object's cluster, namespace and name.
	Transform func(T) T
}

// clusterIndex is the index by cluster, which every cache has.
const clusterIndex = "cluster"

// NewKind returns an empty cache, which [Kind.Run] fills.
func NewKind[T control.Object](config KindConfig[T]) *Kind[T] {
	byCluster := func(o any) ([]string, error) { return []string{string(cluster.Of(o.(T)))}, nil }
	return &Kind[T]{
		config:  config,
		objects: cache.NewThreadSafeStore(cache.Indexers{clusterIndex: byCluster}, cache.Indices{}),
		ready:   make(chan struct{}),
	}
}

// Run fills the cache and keeps it up to date until ctx ends. It returns after all its
// goroutines have stopped.
func (k *Kind[T]) Run(ctx context.Context) {
	lw := &listThenWatch{from: cache.ToListerWatcherWithContext(k.config.ListerWatcher), ctx: ctx}
	// No expected type: with one, the reflector would drop cacheable objects.
	reflector := cache.NewReflectorWithOptions(lw, nil, sink[T]{k, klog.FromContext(ctx)}, cache.ReflectorOptions{
		Name:            k.config.Name,
		TypeDescription: k.config.Name,
	})
	reflector.RunWithContext(ctx)
	lw.close()
}

// Index adds an index: By(name, v) then returns the objects for which values(o)
// contains v. It fails if the name is taken. values must be a pure function of the
// object: it is called with the cache's lock held, so it must not read the cache.
func (k *Kind[T]) Index(name string, values func(T) []string) error {
	err := k.objects.AddIndexers(cache.Indexers{name: func(o any) (found []string, _ error) {
		err := control.Safely(func() error { found = slices.Clone(values(o.(T))); return nil })
		if err != nil {
			control.LogError(klog.Background(), err, "index function panicked; the object is left out", "kind", k.config.Name, "index", name, "key", control.KeyOf(o.(T)))
		}
		return found, nil
	}})
	if err != nil {
		return fmt.Errorf("index %s: %w; give this one another name", k.config.Name, err)
	}
	return nil
}

// By returns the keys of the objects under value v of an index, in any order.
// It panics if the index does not exist.
func (k *Kind[T]) By(index, v string) []control.Key {
	objects, err := k.objects.ByIndex(index, v)
	if err != nil {
		panic(fmt.Sprintf("informer: no index %q; add it before it is used", index)) // a bug of the caller
	}
	var keys []control.Key
	for _, o := range objects {
		keys = append(keys, control.KeyOf(o.(T)))
	}
	return keys
}

// Get returns the object at key, or nil.
func (k *Kind[T]) Get(key control.Key) T {
	o, _ := k.get(key)
	return o
}

func (k *Kind[T]) get(key control.Key) (found T, ok bool) {
	o, ok := k.objects.Get(key.String())
	if ok {
		found = o.(T)
	}
	return found, ok
}

// List returns the objects of a cluster, or of [cluster.All], in any order.
func (k *Kind[T]) List(c cluster.Name) []T {
	objects := k.objects.List
	if c != cluster.All {
		objects = func() []any {
			some, _ := k.objects.ByIndex(clusterIndex, string(c)) // the index exists
			return some
		}
	}
	var all []T
	for _, o := range objects() {
		all = append(all, o.(T))
	}
	return all
}

// Ready returns a channel that is closed once the first list is in the cache.
func (k *Kind[T]) Ready() <-chan struct{} { return k.ready }

// Changed is a source that wakes a loop with the key of each object that is added,
// changed or deleted.
func (k *Kind[T]) Changed() control.Source {
	return k.Wakes(func(o T) []control.Key { return []control.Key{control.KeyOf(o)} })
}

// Read is a source that wakes no loop: the loop only waits until the cache is filled.
func (k *Kind[T]) Read() control.Source { return control.Source{Ready: k.ready} }

// Wakes is a source that wakes a loop with keys(o) when an object is added, changed or
// deleted. For a change, o is both the old and the new object. The function keys may
// read caches, this one too.
func (k *Kind[T]) Wakes(keys func(T) []control.Key) control.Source {
	return control.Source{Ready: k.ready, Subscribe: func(wake func(control.Key)) func() {
		s := &subscriber[T]{keys: keys, wake: wake, kind: k.config.Name}
		k.mu.Lock()
		k.subscribers = append(slices.Clone(k.subscribers), s)
		k.mu.Unlock()
		// From here on s receives changes. The objects that exist already follow.
		for _, o := range k.List(cluster.All) {
			s.notify(o)
		}
		return func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.subscribers = slices.DeleteFunc(slices.Clone(k.subscribers), func(x *subscriber[T]) bool { return x == s })
		}
	}}
}

type subscriber[T control.Object] struct {
	kind string
	keys func(T) []control.Key
	wake func(control.Key)
}

// notify wakes the keys of all objects, each once. A key that is woken twice in a row
// would often run twice.
func (s *subscriber[T]) notify(objects ...T) {
	var keys []control.Key
	for _, o := range objects {
		err := control.Safely(func() error { keys = append(keys, s.keys(o)...); return nil })
		if err != nil {
			control.LogError(klog.Background(), err, "function of a source panicked; the object wakes no loop", "kind", s.kind, "key", control.KeyOf(o))
		}
	}
	slices.SortFunc(keys, compare)
	for _, key := range slices.Compact(keys) {
		s.wake(key)
	}
}

// compare orders keys by cluster, namespace and name.
func compare(a, b control.Key) int {
	return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// notify notifies all subscribers of the old and new object of a change. The cache must
// hold the change already.
func (k *Kind[T]) notify(objects ...T) {
	k.mu.Lock()
	subscribers := k.subscribers
	k.mu.Unlock()
	for _, s := range subscribers {
		s.notify(objects...)
	}
}

// sink is the store that the Reflector of a Kind writes to, from one goroutine.
type sink[T control.Object] struct {
	k   *Kind[T]
	log klog.Logger
}

func (s sink[T]) Add(o any) error    { return s.put(o) }
func (s sink[T]) Update(o any) error { return s.put(o) }
func (s sink[T]) Resync() error      { return nil }

// put and Delete log errors and return nil: the reflector would only log them too.
func (s sink[T]) put(o any) error {
	next, err := s.object(o)
	if err != nil {
		s.log.Error(err, "event left out")
		return nil
	}
	s.store(control.KeyOf(next), next)
	return nil
}

func (s sink[T]) store(key control.Key, next T) {
	if old, ok := s.k.get(key); ok && same(old, next) {
		return // a new list mostly repeats the objects of the cache
	}
	next = s.transformed(key, next)
	old, replaced := s.k.get(key) // only this goroutine writes
	s.k.objects.Update(key.String(), next)
	if replaced {
		s.k.notify(old, next)
		return
	}
	s.k.notify(next)
}

func (s sink[T]) Delete(o any) error {
	last, err := s.object(o)
	if err != nil {
		s.log.Error(err, "event left out")
		return nil
	}
	s.drop(control.KeyOf(last))
	return nil
}

func (s sink[T]) drop(key control.Key) {
	if old, ok := s.k.get(key); ok {
		s.k.objects.Delete(key.String())
		s.k.notify(old)
	}
}

// Replace replaces the content of the cache with a list. It changes one object at a
// time, so readers may see it half done, but never wait for it.
func (s sink[T]) Replace(list []any, _ string) error {
	objects := make(map[control.Key]T, len(list))
	for _, o := range list {
		next, err := s.object(o)
		if err != nil {
			return err
		}
		objects[control.KeyOf(next)] = next
	}
	if len(objects) < len(list) {
		return fmt.Errorf("%d of %d %s have the same cluster, namespace and name as others; check that the list sets their clusters",
			len(list)-len(objects), len(list), s.k.config.Name)
	}
	for _, o := range s.k.List(cluster.All) {
		key := control.KeyOf(o)
		if _, kept := objects[key]; !kept {
			s.drop(key)
		}
	}
	for key, next := range objects {
		s.store(key, next)
	}
	s.k.once.Do(func() { close(s.k.ready) })
	return nil
}

// object returns o as a T that carries its cluster, or an error.
func (s sink[T]) object(o any) (T, error) {
	if cacheable, ok := o.(runtime.CacheableObject); ok {
		o = cacheable.GetObject()
	}
	found, ok := o.(T)
	switch {
	case !ok:
		return found, fmt.Errorf("%s: got a %T, want a %T", s.k.config.Name, o, found)
	case cluster.Of(found) == "":
		return found, fmt.Errorf("%s: object %s/%s has no annotation with its logical cluster", s.k.config.Name, found.GetNamespace(), found.GetName())
	}
	return found, nil
}

func (s sink[T]) transformed(key control.Key, o T) T {
	if s.k.config.Transform == nil {
		return o
	}
	kept := o
	err := control.Safely(func() error { kept = s.k.config.Transform(o); return nil })
	if err != nil {
		control.LogError(s.log, err, "transform panicked; the object is kept as it is", "kind", s.k.config.Name, "key", key)
		return o
	}
	return kept
}

// same reports whether a and b are the same object at the same resource version.
func same(a, b metav1.Object) bool {
	return a.GetResourceVersion() != "" && a.GetResourceVersion() == b.GetResourceVersion() && a.GetUID() == b.GetUID()
}

// listThenWatch makes a Reflector list first and then watch. With streaming lists the
// reflector would lose objects: it buffers the initial objects by namespace and name,
// so those of two clusters collide.
type listThenWatch struct {
	from cache.ListerWatcherWithContext
	ctx  context.Context // of Run, for calls without a context

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // lists in progress; the reflector does not wait for them
}

// IsWatchListSemanticsUnSupported turns streaming lists off; the Reflector calls it.
func (l *listThenWatch) IsWatchListSemanticsUnSupported() bool { return true }

func (l *listThenWatch) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, context.Canceled
	}
	l.running.Add(1)
	l.mu.Unlock()
	defer l.running.Done()
	return l.from.ListWithContext(ctx, o)
}

// WatchWithContext implements [cache.WatcherWithContext]. At the end of Run, it returns a watch
// without events instead of an error: the reflector would log that.
func (l *listThenWatch) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w, err := l.from.WatchWithContext(ctx, o)
	if err != nil && ctx.Err() != nil {
		return watch.NewFake(), nil
	}
	return w, err
}

func (l *listThenWatch) List(o metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(l.ctx, o)
}

func (l *listThenWatch) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(l.ctx, o)
}

// close refuses further lists and waits for those in progress.
func (l *listThenWatch) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.running.Wait()
}
