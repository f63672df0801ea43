package watchcache

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/store"
)

// clusterIndex is the field by which watch caches find the watches of an event, so that an
// event costs only the watches of its cluster.
const clusterIndex = "kcp.io/cluster"

// A cached is upstream's watch cache of one resource in all clusters.
type cached struct {
	storage.Interface
	feed *feeding                    // fills it
	wait func(context.Context) error // waits until it can serve
	stop func()
}

// cacheOptions configure a watch cache.
type cacheOptions struct {
	store.Objects               // as they are read from etcd, by a codec that never fails
	codec         runtime.Codec // of the objects in the cache
	attrs         storage.AttrFunc
	misses        storage.Interface // for what the cache does not serve; nil for the storage that fills it
	from          int64             // see [feeding]
}

// newCached starts a watch cache.
func (c *Caches) newCached(o cacheOptions) (*cached, error) {
	source, err := c.source(o.Objects)
	if err != nil {
		return nil, err
	}
	feed := c.feeding(source, o.Root, o.from)
	made, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage: feed, ResourcePrefix: o.Root, NewFunc: o.New, NewListFunc: o.NewList, GetAttrsFunc: o.attrs, Codec: o.codec,
		Versioner: c.store.Epoch(), GroupResource: o.Config.GroupResource, EventsHistoryWindow: o.Config.EventsHistoryWindow, Clock: c.clock,
		IndexerFuncs: storage.IndexerFuncs{clusterIndex: clusterOf},
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
	if o.misses == nil {
		o.misses = source
	}
	d := cacher.NewCacheDelegator(made, o.misses)
	stop := func() { d.Stop(); feed.stop(); made.Stop(); source.Close() }
	return &cached{Interface: d, feed: feed, wait: made.Wait, stop: stop}, nil
}

func clusterOf(o runtime.Object) string {
	accessor, err := meta.Accessor(o)
	if err != nil {
		return ""
	}
	return string(cluster.Of(accessor))
}

// tenantAttrs adds the cluster to the fields of an object. It never fails: for a stand-in,
// which a registry may refuse, it returns the name alone.
func tenantAttrs(attrs storage.AttrFunc) storage.AttrFunc {
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
		all[clusterIndex] = string(cluster.Of(accessor))
		return l, all, nil
	}
}
