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
	"k8s.io/apimachinery/pkg/runtime/schema"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	topology "github.com/unforked/kcp/apis/topology/v1alpha1"
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
	Slices *feed.Table[Slice]
	// Partitions and PartitionSets are those of all clusters. Sets have only their name.
	Partitions    *feed.Table[*Partition]
	PartitionSets *feed.Table[struct{}]
	// Rollouts has the APIExportRollouts of all clusters.
	Rollouts *feed.Table[*Rollout]
	// Bindings has the bindings of all clusters.
	Bindings *Bindings

	schemas     *schemas
	defaults    readyExports
	conversions *conversions
	unions      unions
	store       *store.Store
	definitions *serve.Definitions
	workspaces  *tenancy.Workspaces
}

// New returns the exports and bindings in a store, whose change feed must not have started.
// The bindings become a source of the resolver, and creations of exports and bindings are
// complete when they return.
func New(s *store.Store, d *serve.Definitions, r *serve.Resolver, w *tenancy.Workspaces) *APIs {
	rules := newConversions(s.Feed()) // before the bindings, which use it
	a := &APIs{
		Partitions:    feed.NewCustomTable(s.Feed(), PartitionResource(), partitionOf),
		PartitionSets: feed.NewCustomTable(s.Feed(), PartitionSetResource(), func(*topology.PartitionSet) (struct{}, error) { return struct{}{}, nil }),
		conversions:   rules,
		Exports:       feed.NewCustomTable(s.Feed(), ExportResource(), exportOf).IndexBy(identityOf), Slices: feed.NewCustomTable(s.Feed(), SliceResource(), sliceOf),
		Rollouts: feed.NewCustomTable(s.Feed(), RolloutResource(), rolloutOf),
		Bindings: newBindings(s.Feed(), d, r, rules), schemas: newSchemas(s.Feed()),
		store: s, definitions: d, workspaces: w,
	}
	if a.binds() {
		w.Defaults = a
	}
	s.Feed().Follow(conversionCauses{a.Bindings})
	s.OnCreate(ExportResource(), inStorageVersion(ExportResource().GroupResource(), a.createExport))
	s.OnCreate(BindingResource(), inStorageVersion(BindingResource().GroupResource(), a.createBinding))
	return a
}

// OnUnused makes a call f with the UID of every schema that a binding uses no more, or that is
// deleted. f must not block. Call it before the change feed starts.
func (a *APIs) OnUnused(f func(uid string)) {
	a.Bindings.OnRelease(f)
	a.schemas.deleted = f
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
