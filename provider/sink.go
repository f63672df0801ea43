package provider

import (
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/unforked/kcp/internal/cluster"
)

// errNoTenant marks an object without the annotation that the server sets.
var errNoTenant = errors.New("the object has no annotation kcp.io/cluster")

// A sink is a kind as the store of its Reflector, which calls it from one goroutine. One
// object that cannot be decoded is left out, and does not hold up the others.
type sink kind

// Add implements cache.ReflectorStore.
func (s *sink) Add(o any) error { return s.put(o) }

// Update implements cache.ReflectorStore.
func (s *sink) Update(o any) error { return s.put(o) }

// Resync implements cache.ReflectorStore.
func (s *sink) Resync() error { return nil }

func (s *sink) put(o any) error {
	k := (*kind)(s)
	c, ok := o.(client.Object)
	if !ok {
		return fmt.Errorf("a watch of %s sent a %T", k.key, o)
	}
	key, err := keyOf(c)
	if err != nil {
		return err
	}
	old, replaces, _ := k.objects.GetByKey(key) // only this goroutine writes
	if replaces && same(old.(client.Object), c) {
		return nil // a new list mostly repeats the cache
	}
	next := k.readable(c)
	if next == nil {
		if replaces && old.(client.Object).GetUID() != c.GetUID() {
			k.drop(key) // that object is gone
		}
		return nil
	}
	k.deliver.Lock()
	defer k.deliver.Unlock()
	_ = k.objects.Update(next) // keyOf has succeeded
	if replaces {
		k.notify(old.(client.Object), next, false)
	} else {
		k.notify(nil, next, false)
	}
	return nil
}

// notify calls the handlers of a new or changed object. The caller holds deliver.
func (k *kind) notify(old, next client.Object, first bool) {
	for _, r := range k.handlers[tenantOf(next)] {
		if old != nil {
			r.call(func() { r.handler.OnUpdate(old, next) }, next)
		} else {
			r.call(func() { r.handler.OnAdd(next, first) }, next)
		}
	}
	for _, w := range k.wide {
		if old != nil {
			w.updated(k, old, next)
		} else {
			w.added(k, next)
		}
	}
	if old == nil {
		k.changed(tenantOf(next))
	}
}

func (k *kind) changed(tenant string) {
	for _, f := range k.all {
		f(tenant)
	}
}

// Delete implements cache.ReflectorStore.
func (s *sink) Delete(o any) error {
	key, err := keyOf(o)
	if err != nil {
		return err
	}
	(*kind)(s).drop(key)
	return nil
}

func (k *kind) drop(key string) {
	old, ok, _ := k.objects.GetByKey(key)
	if !ok {
		return
	}
	k.deliver.Lock()
	defer k.deliver.Unlock()
	_ = k.objects.Delete(old) // it was stored by its key
	c := old.(client.Object)
	for _, r := range k.handlers[tenantOf(c)] {
		r.call(func() { r.handler.OnDelete(old) }, c)
	}
	for _, w := range k.wide {
		w.deleted(k, c)
	}
	k.changed(tenantOf(c))
}

// first fills the cache. Handlers may read it: they are called when it is filled.
func (k *kind) first(list []any) {
	k.deliver.Lock()
	defer k.deliver.Unlock()
	var added []client.Object
	for _, o := range list {
		if c, ok := o.(client.Object); ok {
			if next := k.readable(c); next != nil {
				_ = k.objects.Update(next) // readable objects have keys
				added = append(added, next)
			}
		}
	}
	k.attempt(nil)
	for _, o := range added {
		k.notify(nil, o, true)
	}
}

// Replace implements cache.ReflectorStore. It changes one object at a time, so readers may see
// it half done, but never wait for it.
func (s *sink) Replace(list []any, _ string) error {
	k := (*kind)(s)
	if !closed(k.synced) {
		k.first(list)
		return nil
	}
	keep := make(map[string]bool, len(list))
	for _, o := range list {
		key, err := keyOf(o)
		if err != nil {
			return err
		}
		keep[key] = true
	}
	for _, key := range k.objects.ListKeys() {
		if !keep[key] {
			k.drop(key)
		}
	}
	for _, o := range list {
		if err := s.put(o); err != nil {
			return err
		}
	}
	return nil
}

// same reports whether a and b are the same object at the same resource version.
func same(a, b client.Object) bool {
	return a.GetResourceVersion() != "" && a.GetResourceVersion() == b.GetResourceVersion() && a.GetUID() == b.GetUID()
}

// readable returns an object in the form that the cache stores, nil if there is none. The last
// state that could be read stays in the cache: a controller must not take the object for a
// deleted one.
func (k *kind) readable(o client.Object) client.Object {
	err := errNoTenant
	if tenantOf(o) != "" {
		var next client.Object
		if next, err = k.decode(o); err == nil {
			return next
		}
	}
	k.complain(err, "object does not fit its Go type; this state is left out", o)
	return nil
}

// decode returns an object in the form that the cache stores.
func (k *kind) decode(o client.Object) (client.Object, error) {
	u, ok := o.(*unstructured.Unstructured)
	if k.key.form == onlyIdentity {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
			Annotations: map[string]string{cluster.Annotation: tenantOf(o)},
		}}, nil
	}
	if !ok || k.key.form != typed {
		o.GetObjectKind().SetGroupVersionKind(k.key.GroupVersionKind)
		return o, nil
	}
	next := k.fresh()
	var err error
	if panicked := safely(func() { err = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, next) }); panicked != nil {
		return nil, panicked
	}
	return next, err
}

// A registration is a handler of the events of one tenant.
type registration struct {
	k       *kind
	tenant  string
	handler toolscache.ResourceEventHandler
}

// call calls a handler. A panic is that of one object; others are handled all the same.
func (r *registration) call(f func(), o client.Object) {
	if err := safely(f); err != nil {
		r.k.complain(err, "event handler panicked", o)
	}
}

// handle adds a handler of the events of a tenant. It gets the objects that exist first.
func (k *kind) handle(tenant string, h toolscache.ResourceEventHandler) *registration {
	r := &registration{k, tenant, h}
	k.deliver.Lock()
	defer k.deliver.Unlock()
	k.handlers[tenant] = append(k.handlers[tenant], r)
	existing, _ := k.objects.ByIndex(byTenant, tenant) // the index exists
	for _, o := range existing {
		r.call(func() { h.OnAdd(o, true) }, o.(client.Object))
	}
	return r
}

// forget removes a handler.
func (r *registration) forget() {
	k := r.k
	k.deliver.Lock()
	defer k.deliver.Unlock()
	left := slices.DeleteFunc(k.handlers[r.tenant], func(x *registration) bool { return x == r })
	if k.handlers[r.tenant] = left; len(left) == 0 {
		delete(k.handlers, r.tenant)
	}
}

// HasSynced implements cache.ResourceEventHandlerRegistration.
func (r *registration) HasSynced() bool { return closed(r.k.synced) }

// HasSyncedChecker implements cache.ResourceEventHandlerRegistration.
func (r *registration) HasSyncedChecker() toolscache.DoneChecker { return done{r.k} }

// done tells when a cache is filled.
type done struct{ k *kind }

// Name implements cache.DoneChecker.
func (d done) Name() string { return d.k.key.String() }

// Done implements cache.DoneChecker.
func (d done) Done() <-chan struct{} { return d.k.synced }
