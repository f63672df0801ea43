// Package virtual finds the objects of exported resources that are not stored in the clusters of
// consumers. It hides where they are: a ClusterCachedResource selects objects in the cluster of the
// provider, and an object of the provider's own kind has the URL of a server outside. It ends watches
// when the objects of a resource become others, and keeps ClusterCachedResources and their endpoint
// slices.
package virtual

import (
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"

	cacheapi "github.com/unforked/kcp/apis/cache/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/sharing/bind"
	"github.com/unforked/kcp/internal/sharing/endpoints"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/tenancy"
)

// A Config has the dependencies of [Storage]. All fields are required.
type Config struct {
	Store      *store.Store
	Resolver   *catalog.Resolver
	APIs       *bind.APIs
	Endpoints  *endpoints.Endpoints
	Workspaces *tenancy.Workspaces
	// Identity is that of the export [tenancy.CacheExport].
	Identity string
	// Remote returns a handler that proxies requests to a server that a tenant has chosen.
	Remote func(tenant cluster.Name, what, url string, ca []byte) http.Handler
}

// Storage is the virtual storage of all clusters. Methods may be called concurrently.
type Storage struct {
	// Cached has the ClusterCachedResources of all clusters, and Slices their endpoint slices.
	Cached *feed.Table[*Cached]
	Slices *feed.Table[*endpoints.Slice]
	// Resource is the resource of ClusterCachedResources, and SliceResource that of their endpoint
	// slices.
	Resource, SliceResource keys.Resource

	store      *store.Store
	resolver   *catalog.Resolver
	exports    *exports.Exports
	bindings   *bind.Bindings
	endpoints  *endpoints.Endpoints
	workspaces *tenancy.Workspaces
	remoteTo   func(tenant cluster.Name, what, url string, ca []byte) http.Handler
	readers    *readers
}

// New returns the virtual storage in a store, whose change feed must not have started. Creations of
// ClusterCachedResources are complete when they return.
func New(c Config) *Storage {
	x := &Storage{
		Resource:      keys.CustomResource(schema.GroupResource{Group: cacheapi.GroupVersion.Group, Resource: "clustercachedresources"}, c.Identity),
		SliceResource: keys.CustomResource(schema.GroupResource{Group: cacheapi.GroupVersion.Group, Resource: "clustercachedresourceendpointslices"}, c.Identity),
		store:         c.Store, resolver: c.Resolver, exports: c.APIs.Exports, bindings: c.APIs.Bindings,
		endpoints: c.Endpoints, workspaces: c.Workspaces, remoteTo: c.Remote,
	}
	x.Cached = feed.NewCustomTable(c.Store.Feed(), x.Resource, cachedOf)
	x.Slices = feed.NewTableSince(c.Store.Feed(), x.SliceResource, sliceOf, func(now, before *endpoints.Slice, at int64) {
		if now.Since = at; before != nil && now.Like(before) {
			now.Since = before.Since
		}
	})
	x.readers = newReaders(x)
	c.Store.Feed().Follow(x.readers)
	c.Store.OnCreate(x.Resource, x.create)
	return x
}
