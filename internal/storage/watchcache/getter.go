package watchcache

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/values"
)

// Config returns the upstream configuration of a resource, above all its codec.
type Config func(gr schema.GroupResource, example runtime.Object) (*storagebackend.ConfigForResource, error)

// A Getter gives registries their storage.
type Getter struct {
	caches *Caches
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
func (c *Caches) Natives(config Config, uncached ...schema.GroupResource) *Getter {
	g := &Getter{caches: c, config: config, uncached: map[schema.GroupResource]bool{}}
	for _, gr := range uncached {
		g.uncached[gr] = true
	}
	return g
}

// Customs returns the storage of kinds served from schemas. The config has the codec of
// bare JSON.
func (c *Caches) Customs(config Config) *Getter {
	return &Getter{caches: c, config: config, custom: true}
}

// CustomMetadata returns the storage of kinds served from schemas for requests to all
// clusters for metadata alone. Clusters may have the resource in different versions and
// with different schemas.
func (c *Caches) CustomMetadata(config Config) *Getter {
	return &Getter{caches: c, config: config, custom: true, metadataOnly: true}
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
	cfg.Prefix = g.caches.store.Prefix()
	codec := values.Codec{Codec: cfg.Codec}
	cfg.Codec = codec
	o := generic.RESTOptions{StorageConfig: cfg, EnableGarbageCollection: true, DeleteCollectionWorkers: g.caches.deleters}
	if g.custom {
		cfg.Codec = g.caches.store.WriteHookCodec(codec, gr)
		r := keys.CustomResource(gr, "")
		o.ResourcePrefix, o.Decorator = r.KindPrefix(), g.caches.customStorage(r, g.metadataOnly)
	} else {
		r := keys.NativeResource(gr)
		g.caches.store.Values().Register(r, codec)
		o.ResourcePrefix, o.Decorator = r.Prefix(), g.nativeStorage(r, codec)
	}
	return o, nil
}
