// Package bind shares APIs between logical clusters. A provider has APIResourceSchemas and an
// APIExport; a consumer has an APIBinding to the export, and so the resources of the export. The
// package knows all exports and bindings, decides what a binding gives its cluster, and writes
// both kinds together with what belongs to them.
//
// A binding resolves to a schema and the identity of its export. A consumer has no definition
// of its own, and nothing runs for it: one definition in [cluster.BoundDefinitions] serves all
// bindings to a schema, and all objects of an export are in one range of keys.
package bind

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	cacheapi "github.com/unforked/kcp/apis/cache/v1alpha1"
	topology "github.com/unforked/kcp/apis/topology/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/feed"
	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/serve"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/tenancy"
)

// APIs are the exports and bindings of all clusters. Methods may be called concurrently.
type APIs struct {
	// Exports has the exports of all clusters.
	Exports *feed.Table[*Export]
	// Slices has the APIExportEndpointSlices of all clusters.
	Slices *feed.Table[*Slice]
	// Cached has the ClusterCachedResources of all clusters, and CachedSlices their endpoint
	// slices.
	Cached       *feed.Table[*Cached]
	CachedSlices *feed.Table[*Slice]
	// Partitions and PartitionSets are those of all clusters. Sets have only their name.
	Partitions    *feed.Table[*Partition]
	PartitionSets *feed.Table[struct{}]
	// Rollouts has the APIExportRollouts of all clusters.
	Rollouts *feed.Table[*Rollout]
	// Bindings has the bindings of all clusters.
	Bindings *Bindings

	// Kinds are the resources of kinds of the server.
	Kinds Kinds
	// Remote returns a handler that proxies requests to a server that a tenant has chosen.
	// Set it before the first request.
	Remote func(tenant cluster.Name, what, url string, ca []byte) http.Handler
	// MayBind reports whether a user may bind an export. Set it before the first request.
	MayBind func(context.Context, user.Info, ExportName) (bool, error)

	schemas     *schemas
	defaults    readyExports
	conversions *conversions
	unions      unions
	readers     *readers
	store       *store.Store
	definitions *serve.Definitions
	workspaces  *tenancy.Workspaces
}

// New returns the exports and bindings in a store, whose change feed must not have started.
// The bindings become a source of the resolver, and creations of exports and bindings are
// complete when they return. identities has the identities of the built-in exports by name.
func New(s *store.Store, d *serve.Definitions, r *serve.Resolver, w *tenancy.Workspaces, identities map[string]string) *APIs {
	rules := newConversions(s.Feed()) // before the bindings, which use it
	kinds := kindsOf(identities)
	a := &APIs{
		Partitions:    feed.NewCustomTable(s.Feed(), kinds.Partitions, partitionOf),
		PartitionSets: feed.NewCustomTable(s.Feed(), kinds.PartitionSets, func(*topology.PartitionSet) (struct{}, error) { return struct{}{}, nil }),
		Kinds:         kinds,
		conversions:   rules,
		Exports:       newExports(s.Feed()).IndexBy(identityOf), Slices: feed.NewCustomTable(s.Feed(), SliceResource(), sliceOf),
		Rollouts: feed.NewCustomTable(s.Feed(), RolloutResource(), rolloutOf),
		Cached:   feed.NewCustomTable(s.Feed(), kinds.Cached, cachedOf), CachedSlices: newCachedSlices(s.Feed(), kinds.CachedSlices),
		Bindings: newBindings(s.Feed(), d, r, rules), schemas: newSchemas(s.Feed()),
		store: s, definitions: d, workspaces: w,
	}
	if a.binds() {
		w.Defaults = a
	}
	a.Bindings.exported, a.Bindings.identity = a.exported, a.exportIdentity
	a.readers = newReaders(a)
	s.Feed().Follow(&replacements{a.Bindings, map[ExportName]string{}})
	s.Feed().Follow(conversionCauses{a.Bindings})
	s.Feed().Follow(a.readers)
	s.OnCreate(ExportResource(), inStorageVersion(ExportResource().GroupResource(), a.createExport))
	s.OnCreate(kinds.Cached, a.createCached)
	s.OnCreate(BindingResource(), inStorageVersion(BindingResource().GroupResource(), a.createBinding))
	return a
}

// OnUnused makes a call f with the UID of every schema that a binding uses no more, or that is
// deleted. f must not block. Call it before the change feed starts.
func (a *APIs) OnUnused(f func(uid string)) {
	a.Bindings.OnRelease(f)
	a.schemas.deleted = f
}

// Kinds are the resources of kinds that are stored under the identities of built-in exports.
type Kinds struct {
	// Cached is that of ClusterCachedResources, and CachedSlices that of their endpoint slices.
	Partitions, PartitionSets, Cached, CachedSlices keys.Resource
}

func kindsOf(identities map[string]string) Kinds {
	of := func(group, plural, export string) keys.Resource {
		return keys.CustomResource(schema.GroupResource{Group: group, Resource: plural}, identities[export])
	}
	return Kinds{
		Partitions:    of(topology.GroupVersion.Group, "partitions", tenancy.TopologyExport),
		PartitionSets: of(topology.GroupVersion.Group, "partitionsets", tenancy.TopologyExport),
		Cached:        of(cacheapi.GroupVersion.Group, "clustercachedresources", tenancy.CacheExport),
		CachedSlices:  of(cacheapi.GroupVersion.Group, "clustercachedresourceendpointslices", tenancy.CacheExport),
	}
}

func resource(group, plural string) keys.Resource {
	return keys.CustomResource(schema.GroupResource{Group: group, Resource: plural}, "")
}

// ExportResource returns the resource of APIExports. It belongs to no export itself.
func ExportResource() keys.Resource {
	return resource(apisv1alpha2.GroupVersion.Group, "apiexports")
}

// BindingResource returns the resource of APIBindings.
func BindingResource() keys.Resource {
	return resource(apisv1alpha2.GroupVersion.Group, "apibindings")
}

// SchemaResource returns the resource of APIResourceSchemas.
func SchemaResource() keys.Resource {
	return resource(apisv1alpha1.GroupVersion.Group, "apiresourceschemas")
}

// SliceResource returns the resource of APIExportEndpointSlices.
func SliceResource() keys.Resource {
	return resource(apisv1alpha1.GroupVersion.Group, "apiexportendpointslices")
}

// ConversionResource returns the resource of APIConversions.
func ConversionResource() keys.Resource {
	return resource(apisv1alpha1.GroupVersion.Group, "apiconversions")
}
