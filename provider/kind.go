package provider

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// syncTimeout is how long a reader waits for the first list of a kind.
const syncTimeout = 30 * time.Second

// Indexes that each cache has.
const (
	byTenant    = "tenant"
	byNamespace = "namespace" // values are joined(tenant, namespace)
)

// A kind is the cache of one kind for all tenants of a view. It uses a Reflector with its own
// store: the informers of client-go key objects by namespace and name, so objects of two
// tenants would collide, and their handlers get the events of all tenants.
type kind struct {
	view    *view
	key     kindKey
	fresh   func() client.Object
	objects toolscache.Indexer
	noise   rate.Sometimes // limits the log: tenants choose how many objects are left out

	// deliver orders events: handlers get the objects that exist, then each change. It
	// guards the handlers.
	deliver  sync.Mutex
	handlers map[string][]*registration // by tenant
	all      []func(tenant string)
	wide     []*wide

	mu        sync.Mutex
	mapping   *meta.RESTMapping // nil until the first list
	attempted chan struct{}     // closed when a first list has succeeded or failed
	synced    chan struct{}     // closed when one has succeeded
	err       error             // of the last attempt, before synced
}

func newKind(v *view, key kindKey) (*kind, error) {
	k := &kind{
		view: v, key: key, noise: rate.Sometimes{First: 10, Interval: time.Second}, handlers: map[string][]*registration{},
		attempted: make(chan struct{}), synced: make(chan struct{}),
	}
	var err error
	if k.fresh, err = key.maker(v.p.scheme); err != nil {
		return nil, err
	}
	k.objects = toolscache.NewIndexer(keyOf, toolscache.Indexers{
		byTenant: func(o any) ([]string, error) { return []string{tenantOf(o.(client.Object))}, nil },
		byNamespace: func(o any) ([]string, error) {
			return []string{joined(tenantOf(o.(client.Object)), o.(client.Object).GetNamespace())}, nil
		},
	})
	return k, nil
}

// joined returns a key of several parts. None of them contains the separator.
func joined(parts ...string) string {
	out := parts[0]
	for _, p := range parts[1:] {
		out += "\x00" + p
	}
	return out
}

func keyOf(o any) (string, error) {
	c, ok := o.(client.Object)
	if !ok {
		return "", fmt.Errorf("the cache got a %T", o)
	}
	return joined(tenantOf(c), c.GetNamespace(), c.GetName()), nil
}

// index adds an index by a function. Panics of the function leave the object out of the index:
// tenants choose the objects.
func (k *kind) index(i index) error {
	return k.objects.AddIndexers(toolscache.Indexers{fieldIndex(i.field): func(o any) (found []string, _ error) {
		c := o.(client.Object)
		var values []string
		if err := safely(func() { values = i.extract(c) }); err != nil {
			k.complain(err, "index function panicked; the object is left out of the index", c)
		}
		for _, v := range values {
			found = append(found, joined(tenantOf(c), "", v))
			if ns := c.GetNamespace(); ns != "" {
				found = append(found, joined(tenantOf(c), ns, v))
			}
		}
		return found, nil
	}})
}

func fieldIndex(field string) string { return "field:" + field }

// safely turns a panic of f into an error.
func safely(f func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	f()
	return nil
}

// complain logs an error about an object of a tenant, at most once a second.
func (k *kind) complain(err error, message string, o metav1.Object) {
	k.noise.Do(func() {
		k.view.p.log.Error(err, message, "kind", k.key.Kind, "cluster", tenantOf(o), "namespace", o.GetNamespace(), "name", o.GetName())
	})
}

// run fills the cache and keeps it up to date until ctx ends.
func (k *kind) run(ctx context.Context) {
	r := toolscache.NewReflectorWithOptions(&listThenWatch{ctx, k}, nil, (*sink)(k), toolscache.ReflectorOptions{
		Name: k.key.String(), TypeDescription: k.key.String(),
		// The default waits for up to a minute, also after an export has come back or a server has restarted.
		Backoff: &wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 10, Cap: 5 * time.Second},
	})
	r.RunWithContext(ctx)
}

// wait returns when the cache is filled. It returns an error if the kind cannot be listed, or
// if the tenant is disengaged meanwhile.
func (k *kind) wait(ctx context.Context, t *tenant) error {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	select {
	case <-k.attempted:
	case <-t.ctx.Done():
	case <-ctx.Done():
		return fmt.Errorf("the cache of %s is not filled yet: %w", k.key, ctx.Err())
	}
	if t.ctx.Err() != nil {
		return fmt.Errorf("%s: %w", t.name, ErrDisengaged)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

// attempt records the result of a list.
func (k *kind) attempt(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if closed(k.synced) {
		return // the cache stays in use
	}
	k.err = nil
	if err != nil {
		k.err = fmt.Errorf("the cache of %s cannot be filled: %w", k.key, err)
	} else {
		close(k.synced)
	}
	if !closed(k.attempted) {
		close(k.attempted)
	}
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// mapped returns the resource of the kind. A kind that the view does not have yet is an error,
// which the Reflector retries.
func (k *kind) mapped() (*meta.RESTMapping, error) {
	k.mu.Lock()
	m := k.mapping
	k.mu.Unlock()
	if m != nil {
		return m, nil
	}
	m, err := k.view.mapper.RESTMapping(k.key.GroupKind(), k.key.Version)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mapping = m
	return m, nil
}

// namespaced reports whether the objects have a namespace. Call it after wait.
func (k *kind) namespaced() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mapping == nil || k.mapping.Scope.Name() == meta.RESTScopeNameNamespace
}

func (k *kind) notFound(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	resource := schema.GroupResource{Group: k.key.Group, Resource: k.key.Kind}
	if k.mapping != nil {
		resource = k.mapping.Resource.GroupResource()
	}
	return notFound(resource, name)
}

// has reports whether a tenant has at least one object.
func (k *kind) has(tenant string) bool {
	keys, err := k.objects.IndexKeys(byTenant, tenant)
	return err == nil && len(keys) > 0
}

// tenants returns the tenants with at least one object.
func (k *kind) tenants() []string {
	return slices.DeleteFunc(k.objects.ListIndexFuncValues(byTenant), func(t string) bool { return !k.has(t) })
}

// everywhere calls f with the tenant of each object, and of each later change.
func (k *kind) everywhere(f func(tenant string)) {
	k.deliver.Lock()
	defer k.deliver.Unlock()
	k.all = append(k.all, f)
	for _, t := range k.tenants() {
		f(t)
	}
}
