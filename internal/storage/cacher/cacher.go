package cacher

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
)

// ClusterIndex is the field by which watch caches find the watches of an event, so that an
// event costs only the watches of its cluster.
const ClusterIndex = "kcp.io/cluster"

// A Cache is upstream's watch cache of one resource in all clusters.
type Cache struct {
	storage.Interface
	feed  *feeding // fills it
	inner *cacher.Cacher
	stop  func()
}

// Options configure a watch cache.
type Options struct {
	// Objects are as they are read from etcd, by a codec that never fails.
	store.Objects
	// Codec is that of the objects in the cache.
	Codec runtime.Codec
	// Attrs returns the labels and fields of an object, with the field [ClusterIndex].
	Attrs storage.AttrFunc
	// Misses serves what the cache does not; nil for the storage that fills it.
	Misses storage.Interface
	// From is the revision to begin with, if it is not compacted. 0 means where the last process
	// ended its watches.
	From int64
}

// Start starts a watch cache. The caller calls Stop.
func (g *Group) Start(o Options) (*Cache, error) {
	source, err := g.source(o.Objects)
	if err != nil {
		return nil, err
	}
	feed := g.feeding(source, o.Root, o.From)
	made, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage: feed, ResourcePrefix: o.Root, NewFunc: o.New, NewListFunc: o.NewList, GetAttrsFunc: o.Attrs, Codec: o.Codec,
		Versioner: g.store.Epoch(), GroupResource: o.Config.GroupResource, EventsHistoryWindow: o.Config.EventsHistoryWindow, Clock: g.clock,
		IndexerFuncs: storage.IndexerFuncs{ClusterIndex: clusterOf},
		KeyFunc: func(obj runtime.Object) (string, error) {
			accessor, err := meta.Accessor(obj)
			if err != nil {
				return "", err
			}
			return o.Root + "/" + keys.Tail(cluster.Of(accessor), accessor.GetNamespace(), accessor.GetName()), nil
		},
	})
	if err != nil {
		source.Close()
		return nil, err
	}
	feed.begin(made)
	if o.Misses == nil {
		o.Misses = source
	}
	d := cacher.NewCacheDelegator(made, o.Misses)
	stop := func() { d.Stop(); feed.stop(); made.Stop(); source.Close() }
	return &Cache{Interface: d, feed: feed, inner: made, stop: stop}, nil
}

// Wait waits until the cache can serve.
func (c *Cache) Wait(ctx context.Context) error { return c.inner.Wait(ctx) }

// CatchUp returns once the cache has everything up to a revision, or ctx ends.
func (c *Cache) CatchUp(ctx context.Context, revision int64) { c.feed.catchUp(ctx, revision) }

// Stop stops the cache. It may take a second.
func (c *Cache) Stop() { c.stop() }

// Get implements [storage.Interface].
func (c *Cache) Get(ctx context.Context, key string, o storage.GetOptions, out runtime.Object) error {
	if err := c.feed.awaitVersion(ctx, o.ResourceVersion); err != nil {
		return err
	}
	return c.Interface.Get(ctx, key, o, out)
}

// GetList implements [storage.Interface]. It fails if the cache misses a value of the list.
func (c *Cache) GetList(ctx context.Context, key string, o storage.ListOptions, list runtime.Object) error {
	if err := c.feed.complete(ctx); err != nil {
		return err
	}
	if err := c.feed.awaitVersion(ctx, o.ResourceVersion); err != nil {
		return err
	}
	if err := c.Interface.GetList(ctx, key, o, list); err != nil {
		return err
	}
	return c.feed.complete(ctx) // the cache may have been filled meanwhile
}

// Watch implements [storage.Interface]. It fails if the cache misses a value of the watch.
func (c *Cache) Watch(ctx context.Context, key string, o storage.ListOptions) (watch.Interface, error) {
	if err := c.feed.complete(ctx); err != nil {
		return nil, err
	}
	if o.SendInitialEvents != nil && *o.SendInitialEvents {
		if err := c.feed.awaitVersion(ctx, o.ResourceVersion); err != nil {
			return failed(err), nil
		}
	}
	w, err := c.Interface.Watch(ctx, key, o)
	if err != nil {
		return nil, err
	}
	if err := c.feed.complete(ctx); err != nil {
		w.Stop()
		return nil, err
	}
	return w, nil
}

// failed returns a watch of one event, the error: clients expect those of a watch there.
func failed(err error) watch.Interface {
	events := make(chan watch.Event, 1)
	events <- watch.Event{Type: watch.Error, Object: responsewriters.ErrorToAPIStatus(err)}
	close(events)
	return watch.NewProxyWatcher(events)
}

func clusterOf(o runtime.Object) string {
	accessor, err := meta.Accessor(o)
	if err != nil {
		return ""
	}
	return string(cluster.Of(accessor))
}

// WithCluster returns attributes to which the cluster of an object is added. They never fail: for a
// stand-in, which a registry may refuse, there is the name alone.
func WithCluster(attrs storage.AttrFunc) storage.AttrFunc {
	return func(o runtime.Object) (labels.Set, fields.Set, error) {
		l, f, err := attrs(o)
		accessor, merr := meta.Accessor(o)
		if merr != nil {
			return nil, nil, merr
		}
		all := make(fields.Set, len(f)+2)
		if err != nil {
			l, f = nil, fields.Set{"metadata.name": accessor.GetName(), "metadata.namespace": accessor.GetNamespace()}
		}
		for k, v := range f {
			all[k] = v
		}
		all[ClusterIndex] = string(cluster.Of(accessor))
		return l, all, nil
	}
}
