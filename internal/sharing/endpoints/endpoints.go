// Package endpoints keeps the endpoints of APIExportEndpointSlices, and the Partitions of PartitionSets.
// It hides which URL a provider finds in a slice, and when: the export exists, a consumer has it, and
// the Partition of the slice selects the shard.
package endpoints

import (
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	topology "github.com/unforked/kcp/apis/topology/v1alpha1"
	"github.com/unforked/kcp/internal/sharing/bind"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/tenancy"
)

// Endpoints are the endpoint slices and Partitions of all clusters. Methods may be called concurrently.
type Endpoints struct {
	// Slices has the APIExportEndpointSlices of all clusters.
	Slices *feed.Table[*Slice]
	// Partitions and PartitionSets are those of all clusters. Sets have only their name.
	Partitions    *feed.Table[*Partition]
	PartitionSets *feed.Table[struct{}]
	// PartitionResource is the resource of Partitions, and SetResource that of PartitionSets.
	PartitionResource, SetResource keys.Resource

	store      *store.Store
	apis       *bind.APIs
	workspaces *tenancy.Workspaces
}

// New returns the endpoint slices and Partitions in a store, whose change feed must not have started.
// identity is that of the export [tenancy.TopologyExport].
func New(s *store.Store, a *bind.APIs, w *tenancy.Workspaces, identity string) *Endpoints {
	x := &Endpoints{
		PartitionResource: keys.CustomResource(schema.GroupResource{Group: topology.GroupVersion.Group, Resource: "partitions"}, identity),
		SetResource:       keys.CustomResource(schema.GroupResource{Group: topology.GroupVersion.Group, Resource: "partitionsets"}, identity),
		store:             s, apis: a, workspaces: w,
	}
	x.Partitions = feed.NewCustomTable(s.Feed(), x.PartitionResource, partitionOf)
	x.PartitionSets = feed.NewCustomTable(s.Feed(), x.SetResource, func(*topology.PartitionSet) (struct{}, error) { return struct{}{}, nil })
	x.Slices = feed.NewCustomTable(s.Feed(), exports.SliceResource(), sliceOf)
	s.OnCreate(exports.SliceResource(), x.createSlice)
	return x
}

// shards returns the labels of all shards.
func (x *Endpoints) shards() []labels.Set { return []labels.Set{x.workspaces.Labels()} }
