package watchcache

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/cacher"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/registry"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/storage/watches"
)

// nativeStorage returns the storage of a native resource in all clusters.
func (g *Getter) nativeStorage(r keys.Resource, codec values.Codec) generic.StorageDecorator {
	c := g.caches
	return func(cfg *storagebackend.ConfigForResource, root string, _ func(runtime.Object) (string, error), newFunc, newList func() runtime.Object,
		attrs storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		strict := store.Objects{Config: cfg, Root: root, Codec: codec, New: newFunc, NewList: newList}
		fed := strict
		fed.Codec = c.store.CacheCodec(codec, newFunc, g.share)
		direct, err := c.store.Etcd3(c.direct, strict)
		if err != nil {
			return nil, nil, err
		}
		fedBy, err := c.nativeFeed(r, strict, attrs)
		if err != nil {
			return nil, nil, err
		}
		if g.uncached[cfg.GroupResource] {
			lenient, err := c.store.Lenient(c.direct, fed)
			u := &uncached{Interface: direct, lenient: lenient, caches: c, resource: r, feed: fedBy}
			return registry.NewStorage(c.store, registry.Options{Resource: r, Root: root}, u), direct.Close, err
		}
		n := &nativeCache{Interface: direct, caches: c, resource: r, attrs: cacher.WithCluster(attrs), feed: fedBy}
		n.begin = func(from int64) (*generation, error) {
			made, err := c.cachers.Start(cacher.Options{Objects: fed, Codec: codec.Codec, Attrs: n.attrs, Misses: direct, From: from})
			if err != nil {
				return nil, err
			}
			return &generation{Cache: made}, nil
		}
		if n.now, err = n.begin(0); err != nil {
			return nil, nil, err
		}
		c.histories.add(r, n)
		stop := sync.OnceFunc(func() { n.stop(); direct.Close() })
		c.onClose(stop)
		return registry.NewStorage(c.store, registry.Options{Resource: r, Root: root, Cached: true}, n), stop, nil
	}
}

// An uncached is the storage of a native resource without a watch cache.
type uncached struct {
	storage.Interface
	lenient  storage.Interface // for requests to all clusters: never fails on a value
	caches   *Caches
	resource keys.Resource
	feed     *nativeFeed // for sparse scopes
}

// reader returns the storage for lists and watches.
func (u *uncached) reader(ctx context.Context) storage.Interface {
	if cluster.IsAll(ctx) {
		return u.lenient
	}
	return u.Interface
}

// GetList implements [storage.Interface].
func (u *uncached) GetList(ctx context.Context, key string, o storage.ListOptions, list runtime.Object) error {
	if scope := registry.ScopeOf(ctx); scope != nil {
		return u.feed.list(ctx, scope, o, list)
	}
	return u.reader(ctx).GetList(ctx, key, o, list)
}

// Watch implements [storage.Interface].
func (u *uncached) Watch(ctx context.Context, key string, o storage.ListOptions) (watch.Interface, error) {
	if registry.ScopeOf(ctx) != nil {
		return u.caches.watches.Follow(ctx, u.feed, key, o)
	}
	if err := u.caches.watches.Refuse(); err != nil {
		return nil, err
	}
	bookmarks := o.Predicate.AllowWatchBookmarks
	o.ProgressNotify = bookmarks
	w, err := u.reader(ctx).Watch(ctx, key, o)
	if err != nil {
		return nil, err
	}
	return u.caches.watches.Buffered(w, bookmarks, u.caches.watches.Throttle(u.caches.readable(ctx, u.resource))), nil
}

// readable returns the conversion of the events of a watch of native objects for its reader.
func (c *Caches) readable(ctx context.Context, r keys.Resource) func(watch.Event) (watch.Event, bool) {
	return registry.LabelOf(ctx, r.GroupResource()).Events(c.decodable(ctx, r))
}

// decodable returns the conversion of the events of a watch of native objects. In a watch of
// all clusters, an object that cannot be decoded does not exist; a watch of one cluster ends.
func (c *Caches) decodable(ctx context.Context, r keys.Resource) func(watch.Event) (watch.Event, bool) {
	all := cluster.IsAll(ctx)
	return func(e watch.Event) (watch.Event, bool) {
		if e.Type == watch.Bookmark || e.Type == watch.Error || e.Type == watch.Deleted {
			return e, true
		}
		err := c.store.CheckDecoded(r, e.Object)
		switch {
		case err == nil:
			return e, true
		case !all:
			return watches.Failed(err), true
		default:
			return watch.Event{Type: watch.Deleted, Object: e.Object}, e.Type == watch.Modified
		}
	}
}
