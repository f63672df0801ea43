// Package tenancy hides how workspaces begin and live: their initial content, and the transactions that
// create, complete and change them. Package removal deletes them. The loops are in package controllers, and
// the tree of workspaces, from which everything is decided in memory, is in package tree.
package tenancy

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// Workspaces creates and changes workspaces. All fields but Defaults are required.
type Workspaces struct {
	Store *store.Store
	// Resource is the resource of Workspaces, with the identity of their export.
	Resource keys.Resource
	Tree     *tree.Tree
	// TypeResource is the resource of WorkspaceTypes.
	TypeResource keys.Resource
	Types        *tree.Types
	// Shard hosts the clusters that are created.
	Shard Shard
	// ShardResource is the resource of Shards, and Shards has those of the root workspace.
	ShardResource keys.Resource
	Shards        *feed.Table[Host]
	// BaseURL is the URL of the server for clients, without a path.
	BaseURL string
	// Defaults makes the default bindings of clusters; nil for none.
	Defaults Defaults
	// RootCA has the certificates, in PEM, with which clients in a workspace verify the
	// server.
	RootCA *RootCA
	// NameElsewhere returns the name in other clusters of a user of cluster c. The creator
	// of a workspace in c becomes its administrator by that name.
	NameElsewhere func(c cluster.Name, u user.Info) string
}

// WorkspaceResource returns the resource of Workspaces of an export with that identity.
func WorkspaceResource(identity string) keys.Resource {
	return keys.CustomResource(schema.GroupResource{Group: tenancyapi.GroupVersion.Group, Resource: "workspaces"}, identity)
}

// url returns the URL of a cluster by its name or path.
func (w *Workspaces) url(at string) string { return w.BaseURL + "/clusters/" + at }

// clusterKey is the key of the LogicalCluster in cluster c.
func clusterKey(c cluster.Name) keys.Key {
	return keys.Key{Resource: tree.LogicalClusters(), Cluster: c, Name: core.LogicalClusterName}
}

// WorkspaceWrite returns the write of a Workspace in cluster parent, at its expected revision.
func (w *Workspaces) WorkspaceWrite(parent cluster.Name, ws *tenancyapi.Workspace, expect int64) (store.Write, error) {
	o, err := values.Unstructured(ws, tenancyapi.GroupVersion.WithKind("Workspace"))
	return store.Write{Resource: w.Resource, Cluster: parent, Object: o, Expect: expect}, err
}

// ClusterWrite returns the write of the LogicalCluster of c, at its expected revision.
func ClusterWrite(c cluster.Name, l *core.LogicalCluster, expect int64) (store.Write, error) {
	o, err := values.Unstructured(l, core.GroupVersion.WithKind("LogicalCluster"))
	return store.Write{Resource: tree.LogicalClusters(), Cluster: c, Object: o, Expect: expect}, err
}

// LogicalCluster returns the current LogicalCluster of cluster c, nil if there is none.
func (w *Workspaces) LogicalCluster(ctx context.Context, c cluster.Name) (*core.LogicalCluster, error) {
	l, _, err := read[core.LogicalCluster](ctx, w.Store, clusterKey(c))
	return l, err
}
