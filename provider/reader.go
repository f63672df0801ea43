package provider

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// part is a tenant's part of the shared caches.
type part tenant

var _ cache.Cache = &part{}

// Get implements client.Reader. It waits until the cache of the kind is filled.
func (p *part) Get(ctx context.Context, key client.ObjectKey, out client.Object, opts ...client.GetOption) error {
	k, err := p.filled(ctx, out)
	if err != nil {
		return err
	}
	if !k.namespaced() {
		key.Namespace = ""
	}
	o, found, _ := k.objects.GetByKey(joined(p.name, key.Namespace, key.Name)) // never fails
	if !found {
		return k.notFound(key.Name)
	}
	options := (&client.GetOptions{}).ApplyOptions(opts)
	return set(out, o.(client.Object), options.UnsafeDisableDeepCopy)
}

// set copies an object of the cache to out.
func set(out, o client.Object, shared *bool) error {
	if shared == nil || !*shared {
		o, _ = o.DeepCopyObject().(client.Object)
	}
	to, from := reflect.ValueOf(out), reflect.ValueOf(o)
	if to.Type() != from.Type() {
		return fmt.Errorf("the cache has a %s, but a %s was asked for", from.Type(), to.Type())
	}
	to.Elem().Set(from.Elem())
	return nil
}

// List implements client.Reader. It waits until the cache of the kind is filled.
func (p *part) List(ctx context.Context, out client.ObjectList, opts ...client.ListOption) error {
	k, err := p.filled(ctx, out)
	if err != nil {
		return err
	}
	o := (&client.ListOptions{}).ApplyOptions(opts)
	if o.Continue != "" {
		return errors.New("the cache has no pages; list without continue")
	}
	found, err := p.find(k, o)
	if err != nil {
		return err
	}
	selector := o.LabelSelector
	if selector == nil {
		selector = labels.Everything()
	}
	items := make([]runtime.Object, 0, len(found))
	for _, one := range found {
		if o.Limit > 0 && int64(len(items)) >= o.Limit {
			break
		}
		c := one.(client.Object)
		if !selector.Matches(labels.Set(c.GetLabels())) {
			continue
		}
		if o.UnsafeDisableDeepCopy == nil || !*o.UnsafeDisableDeepCopy {
			c, _ = c.DeepCopyObject().(client.Object)
		}
		items = append(items, c)
	}
	return meta.SetList(out, items)
}

// find returns the objects of the tenant in a namespace, or in all, that match the field
// selector.
func (p *part) find(k *kind, o *client.ListOptions) ([]any, error) {
	var required fields.Requirements
	if o.FieldSelector != nil {
		required = o.FieldSelector.Requirements()
	}
	var found []any
	var err error
	switch {
	case len(required) > 0:
		found, err = k.objects.ByIndex(fieldIndex(required[0].Field), joined(p.name, o.Namespace, required[0].Value))
	case o.Namespace != "":
		found, err = k.objects.ByIndex(byNamespace, joined(p.name, o.Namespace))
	default:
		found, err = k.objects.ByIndex(byTenant, p.name)
	}
	if err != nil {
		return nil, fmt.Errorf("%w; add an index with IndexField", err)
	}
	indexers := k.objects.GetIndexers()
	for _, r := range required {
		values := indexers[fieldIndex(r.Field)]
		if values == nil || r.Operator != selection.Equals && r.Operator != selection.DoubleEquals {
			return nil, fmt.Errorf("the cache only finds exact values of indexed fields, and not %s %s %q", r.Field, r.Operator, r.Value)
		}
		found = slices.DeleteFunc(found, func(one any) bool {
			all, err := values(one)
			return err != nil || !slices.Contains(all, joined(p.name, o.Namespace, r.Value))
		})
	}
	return found, nil
}

// filled returns the cache for an object or list, when it is filled.
func (p *part) filled(ctx context.Context, o runtime.Object) (*kind, error) {
	k, err := p.cacheOf(o)
	if err != nil {
		return nil, err
	}
	return k, k.wait(ctx, (*tenant)(p))
}

func (p *part) cacheOf(o runtime.Object) (*kind, error) {
	key, err := kindOf(o, p.p.scheme)
	if err != nil {
		return nil, err
	}
	return p.view.kind(key)
}

// GetInformer implements cache.Informers. It does not wait: a tenant must not hold up the
// engagement of the next.
func (p *part) GetInformer(_ context.Context, o client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	k, err := p.cacheOf(o)
	if err != nil {
		return nil, err
	}
	return &informer{k, p.name}, nil
}

// GetInformerForKind implements cache.Informers.
func (p *part) GetInformerForKind(_ context.Context, gvk schema.GroupVersionKind, _ ...cache.InformerGetOption) (cache.Informer, error) {
	k, err := p.view.kind(kindKey{GroupVersionKind: gvk})
	if err != nil {
		return nil, err
	}
	return &informer{k, p.name}, nil
}

// RemoveInformer implements cache.Informers.
func (p *part) RemoveInformer(context.Context, client.Object) error {
	return errors.New("the cache belongs to all tenants; its watch ends with the view")
}

// Start implements cache.Informers. The caches run with the view.
func (p *part) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// WaitForCacheSync implements cache.Informers. It returns at once: readers wait for the kinds
// that they read. Otherwise a kind of one shard that cannot be listed would hold up the
// tenants of all shards.
func (p *part) WaitForCacheSync(context.Context) bool { return true }

// IndexField implements client.FieldIndexer.
func (p *part) IndexField(ctx context.Context, o client.Object, field string, extract client.IndexerFunc) error {
	return p.p.IndexField(ctx, o, field, extract)
}

// An informer is the part of one tenant of a shared cache.
type informer struct {
	k      *kind
	tenant string
}

var errResync = errors.New("the shared cache has no resync period; use RequeueAfter")

// AddEventHandler implements cache.Informer.
func (i *informer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.k.handle(i.tenant, h), nil
}

// AddEventHandlerWithResyncPeriod implements cache.Informer.
func (i *informer) AddEventHandlerWithResyncPeriod(h toolscache.ResourceEventHandler, resync time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	if resync != 0 {
		return nil, errResync
	}
	return i.AddEventHandler(h)
}

// AddEventHandlerWithOptions implements cache.Informer.
func (i *informer) AddEventHandlerWithOptions(h toolscache.ResourceEventHandler, o toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	if o.ResyncPeriod != nil && *o.ResyncPeriod != 0 {
		return nil, errResync
	}
	return i.AddEventHandler(h)
}

// RemoveEventHandler implements cache.Informer.
func (i *informer) RemoveEventHandler(h toolscache.ResourceEventHandlerRegistration) error {
	r, ok := h.(*registration)
	if !ok {
		return fmt.Errorf("the handler was not added here: %T", h)
	}
	r.forget()
	return nil
}

// AddIndexers implements cache.Informer.
func (i *informer) AddIndexers(all toolscache.Indexers) error {
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	return fmt.Errorf("the cache belongs to all tenants; add the indexes %s with IndexField of the provider", strings.Join(names, ", "))
}

// HasSynced implements cache.Informer.
func (i *informer) HasSynced() bool { return closed(i.k.synced) }

// HasSyncedChecker implements cache.Informer.
func (i *informer) HasSyncedChecker() toolscache.DoneChecker { return done{i.k} }

// IsStopped implements cache.Informer.
func (i *informer) IsStopped() bool { return i.k.view.stopped() }
