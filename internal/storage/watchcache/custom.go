package watchcache

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
	kjson "sigs.k8s.io/json"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/storage/cacher"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/registry"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/storage/watches"
)

// customStorage returns the storage of one schema of a custom resource. Writes and single
// reads use etcd, lists the cache that all schemas of the resource share, if there is one,
// and watches the change feed.
func (c *Caches) customStorage(kind keys.Resource, metadataOnly bool) generic.StorageDecorator {
	return func(cfg *storagebackend.ConfigForResource, root string, _ func(runtime.Object) (string, error), newFunc, newList func() runtime.Object,
		attrs storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		objects := store.Objects{Config: cfg, Root: root, Codec: cfg.Codec, New: newFunc, NewList: newList}
		of := &custom{caches: c, kind: kind, cfg: cfg, newFunc: newFunc, attrs: cacher.WithCluster(attrs), metadataOnly: metadataOnly, unconverted: unconverted(newFunc())}
		remembering, lenient := objects, objects
		remembering.Decoder = of.remembers
		direct, err := c.store.Etcd3(c.direct, remembering)
		if err != nil {
			return nil, nil, err
		}
		of.Interface = direct
		lenient.Codec = c.store.CacheCodec(cfg.Codec, newFunc, nil)
		if of.lenient, err = c.store.Lenient(c.direct, lenient); err != nil {
			return nil, nil, err
		}
		if of.rawStorage, err = c.store.Lenient(c.direct, c.stored(cfg, root)); err != nil {
			return nil, nil, err
		}
		options := registry.Options{Resource: kind, Root: root, Cached: true}
		return registry.NewStorage(c.store, options, of), sync.OnceFunc(direct.Close), nil
	}
}

// stored returns the custom resources below a root as raw objects.
func (c *Caches) stored(cfg *storagebackend.ConfigForResource, root string) store.Objects {
	return store.Objects{Config: cfg, Root: root, Codec: rawCodec{c.store.Stamps()}, New: newRaw, NewList: newRawList}
}

// custom is the storage of one schema, by keys with a cluster.
type custom struct {
	storage.Interface // etcd
	caches            *Caches
	kind              keys.Resource // without an identity
	cfg               *storagebackend.ConfigForResource
	newFunc           func() runtime.Object
	attrs             storage.AttrFunc
	lenient           storage.Interface // etcd, for requests to all clusters
	rawStorage        storage.Interface // etcd, of raw
	metadataOnly      bool              // the same for all versions of an object
	unconverted       []byte            // the start of values stored in the version of the schema
}

// Resource implements [watches.Source].
func (c *custom) Resource(ctx context.Context) keys.Resource { return registry.Identified(ctx, c.kind) }

// reader returns the storage for selectors of fields that only a schema defines.
func (c *custom) reader(ctx context.Context) storage.Interface {
	if cluster.IsAll(ctx) {
		return c.lenient
	}
	return c.Interface
}

func (c *custom) ReadinessCheck() error { return nil }

// Transformer implements [watches.Source].
func (c *custom) Transformer() values.Transformer {
	return c.caches.store.Values().Transformer(c.cfg.GroupResource)
}

// Past implements [watches.Source].
func (c *custom) Past(ctx context.Context, key string, o storage.ListOptions, into *watches.RawList) error {
	return c.rawStorage.GetList(ctx, key, o, into)
}

// Raw implements [watches.Source].
func (c *custom) Raw(framed []byte) (watches.Raw, error) {
	return rawOf(framed, c.caches.store.Stamps())
}

// Selects implements [watches.Source].
func (c *custom) Selects(r *watches.Raw, p storage.SelectionPredicate) (bool, error) {
	if cachedFields(p.Field) {
		p.GetAttrs = rawAttrs
		return p.Matches(r)
	}
	o, err := c.decode(r)
	if err != nil {
		return false, err
	}
	p.GetAttrs = c.attrs
	return p.Matches(o)
}

// cachedFields reports whether a raw has all fields of a selector.
func cachedFields(s fields.Selector) bool {
	if s == nil {
		return true
	}
	for _, r := range s.Requirements() {
		if r.Field != "metadata.name" && r.Field != "metadata.namespace" {
			return false
		}
	}
	return true
}

// Raws implements [watches.Source]: it lists custom resources as stored values, from the cache of
// the resource, if there is one, or from etcd.
func (c *custom) Raws(ctx context.Context, key string, o storage.ListOptions, into *watches.RawList) error {
	if scope := registry.ScopeOf(ctx); scope != nil && scope.Sparse {
		list, err := c.caches.watches.List(ctx, c, scope, o)
		if err == nil {
			*into = *list
		}
		return err
	}
	err := c.allRaws(ctx, key, o, into)
	if err == nil {
		into.Items, err = watches.Scoped(ctx, c.caches.store, into.ResourceVersion, into.Items, func(r *watches.Raw) cluster.Name { return cluster.Of(r) })
	}
	return err
}

// allRaws is Raws without the scope of the request.
func (c *custom) allRaws(ctx context.Context, key string, o storage.ListOptions, into *watches.RawList) error {
	o.Predicate.GetAttrs = rawAttrs
	r, all := c.Resource(ctx), c.caches.customs
	if w := all.use(r); w != nil {
		defer all.done(w)
		if err := w.GetList(ctx, key, o, into); err == nil || !unready(err) {
			return err
		}
	}
	*into = watches.RawList{}
	if err := fair.Grow(ctx, registry.Stored(ctx, c.caches.store, r, o)); err != nil {
		return err
	}
	ctx, read := store.CountReads(ctx)
	err := c.rawStorage.GetList(ctx, key, o, into)
	all.read(r, read.Objects, c.cfg)
	return err
}

// unready reports whether a cache lost its watch, and fills itself again.
func unready(err error) bool {
	return apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err)
}

// GetList implements [storage.Interface].
func (c *custom) GetList(ctx context.Context, key string, o storage.ListOptions, list runtime.Object) error {
	if into, ok := list.(*EncodedList); ok {
		return c.encodedList(ctx, key, o, into)
	}
	if scope := registry.ScopeOf(ctx); !cachedFields(o.Predicate.Field) && (scope == nil || !scope.Sparse) {
		// All objects are decoded: the selector may choose any.
		if err := fair.Grow(ctx, manyTimes*registry.Stored(ctx, c.caches.store, c.Resource(ctx), o)); err != nil {
			return err
		}
		o.Predicate.GetAttrs = c.attrs
		if err := c.reader(ctx).GetList(ctx, key, o, list); err != nil {
			return err
		}
		into, err := itemsOf(list)
		if err != nil {
			return err
		}
		return into.scope(ctx, c.caches.store)
	}
	into, err := itemsOf(list)
	if err != nil {
		return err
	}
	var raws watches.RawList
	if err := c.Raws(ctx, key, o, &raws); err != nil {
		return err
	}
	into.reserve(len(raws.Items))
	if err := each(ctx, &raws, c.weighed(ctx), into.add); err != nil {
		return err
	}
	raws.CopyMeta(into.meta)
	return nil
}

// weighed returns a decoder that counts the memory of objects, which are kept until the
// request ends.
func (c *custom) weighed(ctx context.Context) func(*watches.Raw) (runtime.Object, error) {
	if c.metadataOnly {
		return c.decode
	}
	return func(r *watches.Raw) (runtime.Object, error) {
		o, err := c.decode(r)
		if u, ok := o.(*unstructured.Unstructured); ok && err == nil {
			err = fair.Grow(ctx, weigh(u.Object))
		} else if err == nil {
			err = fair.Grow(ctx, objectWeight+typedTimes*int64(len(r.Framed)))
		}
		return o, err
	}
}

// each converts every object of a list, and passes it to take.
func each[V any](ctx context.Context, l *watches.RawList, of func(*watches.Raw) (V, error), take func(V)) error {
	for i := range l.Items {
		v, err := of(&l.Items[i])
		if err != nil {
			if cluster.IsAll(ctx) && ctx.Err() == nil { // a deadline is no fault of the value
				continue // one tenant's bad value must not fail the list
			}
			return err
		}
		take(v)
	}
	return nil
}

// decode returns an object as its schema decodes it. It is shared, unless it is of a native kind:
// registries change the objects that they read.
func (c *custom) decode(r *watches.Raw) (runtime.Object, error) {
	return r.Decode(c)
}

// DecodeRaw implements [watches.Decoder].
func (c *custom) DecodeRaw(r *watches.Raw) (runtime.Object, error) {
	if c.metadataOnly {
		return c.decodeMetadata(r)
	}
	kept := c.caches.decoded
	key := kept.key(c, r.ResourceVersion, r.Framed)
	if o, ok := kept.find(key, r.Framed); ok {
		return c.own(o), nil
	}
	o, err := c.decoded(r)
	if err == nil && c.keeps(r.Framed) {
		kept.put(key, r.Framed, o, len(r.Framed))
	}
	if err != nil {
		return nil, err
	}
	return c.own(o), nil
}

// own returns a copy of an object of a native kind, and other objects as they are.
func (c *custom) own(o runtime.Object) runtime.Object {
	if _, ok := o.(*unstructured.Unstructured); ok {
		return o
	}
	return o.DeepCopyObject()
}

func (c *custom) decoded(r *watches.Raw) (runtime.Object, error) {
	o, err := runtime.Decode(c.cfg.Codec, r.Framed)
	if err != nil {
		return nil, err
	}
	accessor, err := meta.Accessor(o)
	if err != nil {
		return nil, err
	}
	accessor.SetResourceVersion(r.ResourceVersion)
	return o, nil
}

// Watch implements [storage.Interface].
func (c *custom) Watch(ctx context.Context, key string, o storage.ListOptions) (watch.Interface, error) {
	if encodesEvents(ctx) {
		return c.caches.watches.Follow(ctx, encodedEvents{c}, key, o)
	}
	return c.caches.watches.Follow(ctx, c, key, o)
}

// Event implements [watches.Source]: it decodes an event with this schema. In a watch of all clusters, an object that
// cannot be decoded does not exist; a watch of one cluster ends.
func (c *custom) Event(e watch.Event, wildcard bool) (watch.Event, bool) {
	r, ok := e.Object.(*watches.Raw)
	if !ok {
		return e, true // a Status
	}
	if e.Type == watch.Bookmark {
		return c.named(e.Type, r)
	}
	u, err := c.decode(r)
	switch {
	case err == nil:
		return watch.Event{Type: e.Type, Object: u}, true
	case e.Type == watch.Deleted:
		return c.named(e.Type, r)
	case !wildcard:
		return watches.Failed(err), true
	case e.Type == watch.Modified:
		return c.named(watch.Deleted, r)
	default:
		return watch.Event{}, false
	}
}

// named returns an event with an object that has only the metadata of its raw.
func (c *custom) named(t watch.EventType, r *watches.Raw) (watch.Event, bool) {
	o := c.newFunc()
	accessor, err := meta.Accessor(o)
	if err != nil {
		return watch.Event{}, false
	}
	accessor.SetNamespace(r.Namespace)
	accessor.SetName(r.Name)
	accessor.SetResourceVersion(r.ResourceVersion)
	accessor.SetAnnotations(r.Annotations)
	return watch.Event{Type: t, Object: o}, true
}

// decodeMetadata returns an object with the fields that all versions have.
func (c *custom) decodeMetadata(r *watches.Raw) (runtime.Object, error) {
	tail, value, err := values.CutFrame(r.Framed)
	if err != nil {
		return nil, err
	}
	var stored struct {
		Metadata map[string]any `json:"metadata"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(value, &stored); err != nil {
		return nil, fmt.Errorf("stored object %s: %w", tail, err)
	}
	u, ok := c.newFunc().(*unstructured.Unstructured)
	name, namespace, object, valid := keys.SplitTail(tail)
	if !ok || !valid || stored.Metadata["name"] != object {
		return nil, fmt.Errorf("stored object %s is none", tail)
	}
	u.Object["metadata"] = stored.Metadata
	u.SetNamespace(namespace)
	u.SetResourceVersion(r.ResourceVersion)
	values.SetCluster(u, name)
	return u, nil
}
