package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
)

// A Kind is a live view of one resource across every logical cluster.
// Objects that it returns are shared: copy them before changing them.
//
// It is a Reflector over a store of its own, because client-go's informers key
// objects by namespace and name, so that those of two tenants would collide.
type Kind[T Object] struct {
	config KindConfig[T]
	view   *view[T]

	ready chan struct{} // closed once the first list is in the view
	once  sync.Once

	mu          sync.Mutex
	subscribers []*subscriber[T] // replaced, never changed
}

// KindConfig says what a [Kind] shows and how it writes.
type KindConfig[T Object] struct {
	// Name is the resource, for logs and errors.
	Name string

	// ListerWatcher lists and watches the resource in all logical clusters.
	// Each object says which it belongs to, as [cluster.Of] reads it. Watches
	// in process may send a runtime.CacheableObject in the place of an object.
	ListerWatcher cache.ListerWatcher

	// Saver writes for [Kind.Save]. Without it the view is for reading only.
	Saver Saver

	// Transform, if not nil, returns what is kept of an object, for example all
	// but its managed fields. It copies what it changes if others have the
	// object too, and leaves alone what names it.
	Transform func(T) T
}

// NewKind returns an empty view, which [Kind.Run] fills.
func NewKind[T Object](config KindConfig[T]) *Kind[T] {
	return &Kind[T]{config: config, view: newView[T](), ready: make(chan struct{})}
}

// Run fills the view and keeps it up to date until ctx ends. It returns when
// everything that it started has stopped.
func (k *Kind[T]) Run(ctx context.Context) {
	lw := &listThenWatch{from: cache.ToListerWatcherWithContext(k.config.ListerWatcher), ctx: ctx}
	// No expected type, which would have the reflector drop cacheable objects.
	reflector := cache.NewReflectorWithOptions(lw, nil, sink[T]{k, klog.FromContext(ctx)}, cache.ReflectorOptions{
		Name:            k.config.Name,
		TypeDescription: k.config.Name,
	})
	reflector.RunWithContext(ctx)
	lw.close()
}

// Index makes By(name, v) return the objects for which values(o) holds v.
// It fails if there is an index of that name. values is a pure function of the
// object: it must not read the view.
func (k *Kind[T]) Index(name string, values func(T) []string) error {
	err := k.view.addIndex(name, func(key Key, o T) (found []string) {
		err := safely(func() error { found = slices.Clone(values(o)); return nil })
		if err != nil {
			logPanic(klog.Background(), err, "index function panicked; the object is left out", "kind", k.config.Name, "index", name, "key", key)
		}
		return found
	})
	if err != nil {
		return fmt.Errorf("index %s: %w", k.config.Name, err)
	}
	return nil
}

// By returns the keys of the objects under value v of an index, in any order.
// It panics if there is no such index.
func (k *Kind[T]) By(index, v string) []Key { return k.view.by(index, v) }

// Get returns the object at key, or nil.
func (k *Kind[T]) Get(key Key) T {
	o, _ := k.view.get(key)
	return o
}

// List returns the objects of a cluster, or of [cluster.All], in any order.
func (k *Kind[T]) List(c cluster.Name) []T { return k.view.list(c) }

// Ready is closed once everything that existed when Run began can be read.
func (k *Kind[T]) Ready() <-chan struct{} { return k.ready }

// Changed wakes a loop with the key of each object that appears, changes or goes.
func (k *Kind[T]) Changed() Source { return k.Wakes(func(o T) []Key { return []Key{KeyOf(o)} }) }

// Read wakes nothing; it only makes the loop wait for the view to be filled.
func (k *Kind[T]) Read() Source { return Source{Ready: k.ready} }

// Wakes wakes a loop with the keys that an object which appears, changes or
// goes may concern: those for the object as it was, and as it is. The function
// may read views, this one too.
func (k *Kind[T]) Wakes(keys func(T) []Key) Source {
	return Source{Ready: k.ready, Subscribe: func(wake func(Key)) func() {
		s := &subscriber[T]{keys: keys, wake: wake, kind: k.config.Name}
		k.mu.Lock()
		k.subscribers = append(slices.Clone(k.subscribers), s)
		k.mu.Unlock()
		// After this point s is told of changes; what was there before follows.
		for _, o := range k.view.list(cluster.All) {
			s.tell(o)
		}
		return func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.subscribers = slices.DeleteFunc(slices.Clone(k.subscribers), func(x *subscriber[T]) bool { return x == s })
		}
	}}
}

type subscriber[T Object] struct {
	kind string
	keys func(T) []Key
	wake func(Key)
}

// tell wakes the keys that any of the objects concerns, each once: woken twice
// in a row, a key would mostly be worked on twice.
func (s *subscriber[T]) tell(objects ...T) {
	var keys []Key
	for _, o := range objects {
		err := safely(func() error { keys = append(keys, s.keys(o)...); return nil })
		if err != nil {
			logPanic(klog.Background(), err, "cannot tell which keys an object concerns; no loop is woken", "kind", s.kind, "key", KeyOf(o))
		}
	}
	slices.SortFunc(keys, Key.compare)
	for _, key := range slices.Compact(keys) {
		s.wake(key)
	}
}

// tell tells subscribers of objects as they were or are, once the view shows it.
func (k *Kind[T]) tell(objects ...T) {
	k.mu.Lock()
	subscribers := k.subscribers
	k.mu.Unlock()
	for _, s := range subscribers {
		s.tell(objects...)
	}
}

// sink is the side of a Kind that its Reflector writes to, from one goroutine.
type sink[T Object] struct {
	k   *Kind[T]
	log klog.Logger
}

func (s sink[T]) Add(o any) error    { return s.put(o) }
func (s sink[T]) Update(o any) error { return s.put(o) }
func (s sink[T]) Resync() error      { return nil }

// put never fails, nor does Delete: the reflector would do no more than log it.
func (s sink[T]) put(o any) error {
	next, err := s.object(o)
	if err != nil {
		s.log.Error(err, "event left out")
		return nil
	}
	s.store(KeyOf(next), next)
	return nil
}

func (s sink[T]) store(key Key, next T) {
	if old, ok := s.k.view.get(key); ok && same(old, next) {
		return // lists that follow one another mostly repeat themselves
	}
	next = s.transformed(key, next)
	old, replaced := s.k.view.put(key, next)
	if replaced {
		s.k.tell(old, next)
		return
	}
	s.k.tell(next)
}

func (s sink[T]) Delete(o any) error {
	last, err := s.object(o)
	if err != nil {
		s.log.Error(err, "event left out")
		return nil
	}
	if old, dropped := s.k.view.drop(KeyOf(last)); dropped {
		s.k.tell(old)
	}
	return nil
}

// Replace makes the view show a list. It does so object by object: readers may
// see it half done, as they do with events, but they never wait for it.
func (s sink[T]) Replace(list []any, _ string) error {
	objects := make(map[Key]T, len(list))
	for _, o := range list {
		next, err := s.object(o)
		if err != nil {
			return err
		}
		objects[KeyOf(next)] = next
	}
	if len(objects) < len(list) {
		return fmt.Errorf("%d of %d %s are of the same cluster, namespace and name as others; does the list say which clusters they belong to?",
			len(list)-len(objects), len(list), s.k.config.Name)
	}
	for _, key := range s.k.view.except(objects) {
		if old, dropped := s.k.view.drop(key); dropped {
			s.k.tell(old)
		}
	}
	for key, next := range objects {
		s.store(key, next)
	}
	s.k.once.Do(func() { close(s.k.ready) })
	return nil
}

// object returns o as what the view holds.
func (s sink[T]) object(o any) (T, error) {
	if cacheable, ok := o.(runtime.CacheableObject); ok {
		o = cacheable.GetObject()
	}
	found, ok := o.(T)
	switch {
	case !ok:
		return found, fmt.Errorf("%s: got a %T where a %T is due", s.k.config.Name, o, found)
	case cluster.Of(found) == "":
		return found, fmt.Errorf("%s: object %s/%s does not say which logical cluster it belongs to", s.k.config.Name, found.GetNamespace(), found.GetName())
	}
	return found, nil
}

func (s sink[T]) transformed(key Key, o T) T {
	if s.k.config.Transform == nil {
		return o
	}
	kept := o
	err := safely(func() error { kept = s.k.config.Transform(o); return nil })
	if err != nil {
		logPanic(s.log, err, "transform panicked; the object is kept as it is", "kind", s.k.config.Name, "key", key)
		return o
	}
	return kept
}

// same reports whether two objects are the same one at the same version.
func same(a, b metav1.Object) bool {
	return a.GetResourceVersion() != "" && a.GetResourceVersion() == b.GetResourceVersion() && a.GetUID() == b.GetUID()
}

func logPanic(log klog.Logger, err error, message string, keysAndValues ...any) {
	var crash panicked
	if errors.As(err, &crash) {
		keysAndValues = append(keysAndValues, "stack", string(crash.stack))
	}
	log.Error(err, message, keysAndValues...)
}

// listThenWatch keeps a Reflector to lists that are followed by watches. A
// watch that sends the initial objects would lose some: until it has them all,
// the reflector keeps them by namespace and name.
type listThenWatch struct {
	from cache.ListerWatcherWithContext
	ctx  context.Context // of the run that it serves, for calls that bring none

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // lists, which the reflector does not wait for
}

// IsWatchListSemanticsUnSupported is how a Reflector asks.
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

func (l *listThenWatch) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return l.from.WatchWithContext(ctx, o)
}

func (l *listThenWatch) List(o metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(l.ctx, o)
}

func (l *listThenWatch) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(l.ctx, o)
}

// close returns when no list is running any more.
func (l *listThenWatch) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.running.Wait()
}
