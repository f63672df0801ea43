package store

import (
	"io"
	"sync"

	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/values"
)

// Config returns the upstream configuration of a resource, above all its codec.
type Config func(gr schema.GroupResource, example runtime.Object) (*storagebackend.ConfigForResource, error)

// A Getter gives registries their storage.
type Getter struct {
	store  *Store
	config Config
	// uncached resources expire by lease: several objects may expire in one revision, of
	// which a watch cache would process one.
	uncached map[schema.GroupResource]bool
	share    func(runtime.Object)
	custom   bool
	// metadataOnly is for custom resources whose schemas differ between clusters.
	metadataOnly bool
}

var _ generic.RESTOptionsGetter = (*Getter)(nil)

// Natives returns the storage of kinds compiled into the server.
func (s *Store) Natives(config Config, uncached ...schema.GroupResource) *Getter {
	g := &Getter{store: s, config: config, uncached: map[schema.GroupResource]bool{}}
	for _, gr := range uncached {
		g.uncached[gr] = true
	}
	return g
}

// Share sets a function that gets every object before a cache keeps it, to share equal
// parts of objects. It returns g.
func (g *Getter) Share(share func(runtime.Object)) *Getter {
	g.share = share
	return g
}

// GetRESTOptions implements [generic.RESTOptionsGetter].
func (g *Getter) GetRESTOptions(gr schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	cfg, err := g.config(gr, example)
	if err != nil {
		return generic.RESTOptions{}, err
	}
	cfg.Prefix = g.store.prefix
	codec := values.Codec{Codec: cfg.Codec}
	cfg.Codec = codec
	o := generic.RESTOptions{StorageConfig: cfg, EnableGarbageCollection: true, DeleteCollectionWorkers: g.store.deleters}
	if g.custom {
		cfg.Codec = derivingCodec{codec, g.store, gr}
		r := keys.CustomResource(gr, "")
		o.ResourcePrefix, o.Decorator = r.KindPrefix(), g.store.customStorage(r, g.metadataOnly)
	} else {
		r := keys.NativeResource(gr)
		g.store.values.Register(r, codec)
		o.ResourcePrefix, o.Decorator = r.Prefix(), g.nativeStorage(r, codec)
	}
	return o, nil
}

// nativeStorage returns the storage of a native resource in all clusters.
func (g *Getter) nativeStorage(r keys.Resource, codec values.Codec) generic.StorageDecorator {
	s := g.store
	return func(cfg *storagebackend.ConfigForResource, root string, _ func(runtime.Object) (string, error), newFunc, newList func() runtime.Object,
		attrs storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		strict := objects{cfg, root, codec, newFunc, newList}
		fed := objects{cfg, root, values.CacheCodec{Codec: codec, Empty: newFunc, Stamps: s.stamps, Failed: s.undecodable, Share: g.share}, newFunc, newList}
		direct, err := s.etcd3(s.direct, strict)
		if err != nil {
			return nil, nil, err
		}
		m := &multi{Interface: direct, store: s, kind: r, root: root, attrs: tenantAttrs(attrs)}
		if g.uncached[cfg.GroupResource] {
			m.lenient, err = s.lenient(s.direct, fed)
			return m, direct.Close, err
		}
		n := &nativeCache{Interface: direct, store: s, begin: func(from int64) (*generation, error) {
			return s.generation(fed, codec.Codec, direct, m.attrs, from)
		}}
		if n.now, err = n.begin(0); err != nil {
			return nil, nil, err
		}
		s.histories.add(r, n)
		m.Interface, m.wait = n, n.ready
		stop := sync.OnceFunc(func() { n.stop(); direct.Close() })
		s.onClose(stop)
		return m, stop, nil
	}
}

// generation starts a watch cache. See [nativeCache].
func (s *Store) generation(fed objects, codec runtime.Codec, direct storage.Interface, attrs storage.AttrFunc, from int64) (*generation, error) {
	feed, err := s.source(fed)
	if err != nil {
		return nil, err
	}
	feeding := s.feeding(feed, fed.root)
	feeding.from = from
	c, err := s.newCacher(fed.cfg, cacher.Config{
		Storage: feeding, ResourcePrefix: fed.root, NewFunc: fed.newFunc, NewListFunc: fed.newList,
		GetAttrsFunc: attrs, Codec: codec,
	})
	if err != nil {
		feed.Close()
		return nil, err
	}
	d := cacher.NewCacheDelegator(c, direct)
	stop := func() { d.Stop(); feeding.stop(); c.Stop(); feed.Close() }
	return &generation{Interface: d, feed: feeding, wait: c.Wait, stop: stop}, nil
}

// objects are the keys below a root and how their values are encoded.
type objects struct {
	cfg              *storagebackend.ConfigForResource
	root             string
	codec            runtime.Codec
	newFunc, newList func() runtime.Object
}

// etcd3 returns upstream's storage, for requests of clients.
func (s *Store) etcd3(c *kubernetes.Client, o objects) (etcd3Storage, error) {
	return s.storage(c, o, s.values.Transformer(o.cfg.GroupResource), plainly)
}

// lenient returns upstream's storage for reads that must not fail on a value. The codec
// must not fail either.
func (s *Store) lenient(c *kubernetes.Client, o objects) (etcd3Storage, error) {
	return s.storage(c, o, s.values.Transformer(o.cfg.GroupResource).Lenient(), plainly)
}

func plainly(d etcd3.Decoder) etcd3.Decoder { return d }

func (s *Store) storage(c *kubernetes.Client, o objects, t values.Transformer, decoder func(etcd3.Decoder) etcd3.Decoder) (etcd3Storage, error) {
	v := s.epoch
	return etcd3.New(c, nil, o.codec, o.newFunc, o.newList, s.prefix, o.root, o.cfg.GroupResource,
		t, o.cfg.LeaseManagerConfig, decoder(etcd3.NewDefaultDecoder(o.codec, v)), v)
}

// source returns the storage that fills a cache: it has a watch stream of its own, and
// never fails on a value.
func (s *Store) source(o objects) (etcd3Storage, error) {
	c := s.client()
	inner, err := s.lenient(c, o)
	if err != nil {
		_ = c.Close() // reports only that its context ended
		return nil, err
	}
	return &cacheSource{etcd3Storage: inner, client: c}, nil
}

type etcd3Storage interface {
	storage.Interface
	Close()
}

// newCacher starts a cache, with the configuration that all caches share.
func (s *Store) newCacher(cfg *storagebackend.ConfigForResource, c cacher.Config) (*cacher.Cacher, error) {
	c.Versioner = s.epoch
	c.GroupResource = cfg.GroupResource
	c.EventsHistoryWindow = cfg.EventsHistoryWindow
	c.Clock = s.clock
	c.IndexerFuncs = storage.IndexerFuncs{clusterIndex: clusterOf}
	c.KeyFunc = func(o runtime.Object) (string, error) {
		accessor, err := meta.Accessor(o)
		if err != nil {
			return "", err
		}
		return c.ResourcePrefix + "/" + keys.Tail(cluster.Of(accessor), accessor.GetNamespace(), accessor.GetName()), nil
	}
	made, err := cacher.NewCacherFromConfig(c)
	if from, ok := c.Storage.(*feeding); ok && err == nil {
		from.cache = made
		s.feedsMu.Lock()
		defer s.feedsMu.Unlock()
		s.feeds[from] = struct{}{}
	}
	return made, err
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

// A derivingCodec is a Codec of custom resources that runs the write hook on new objects.
// In a dry run only the codec sees the object; the answer must be that of a real request.
type derivingCodec struct {
	values.Codec
	store *Store
	of    schema.GroupResource
}

// Encode implements [runtime.Encoder].
func (c derivingCodec) Encode(obj runtime.Object, w io.Writer) error {
	if u, ok := obj.(*unstructured.Unstructured); ok && u.GetResourceVersion() == "" {
		if hook := c.store.derivedIn(c.of); hook != nil {
			u = u.DeepCopy()
			hook(u)
			obj = u
		}
	}
	return c.Codec.Encode(obj, w)
}
