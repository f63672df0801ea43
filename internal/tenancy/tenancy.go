// Package tenancy hides how a workspace comes to be and ends: what it contains from
// the start, in which transactions it is written, and how it is found by its path.
package tenancy

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/store"
)

// ShardName is the name of the shard that hosts the root workspace.
const ShardName = "root"

// shardHash is the first eight characters of the base36 form of the SHA-224 of it.
const shardHash = "1pfxsevk"

// Workspaces makes and ends workspaces. All fields are required.
type Workspaces struct {
	Store *store.Store
	// Resource is where Workspaces are stored: under the identity of the export
	// that they belong to.
	Resource store.Resource
	Tree     *Tree
	// TypeResource is where WorkspaceTypes are stored.
	TypeResource store.Resource
	Types        *Types
	// BaseURL is how clients reach the server, without a path.
	BaseURL string
	// RootCA returns the certificates, in PEM, that clients in a workspace verify
	// the server with.
	RootCA string
	// NameElsewhere returns the name by which other clusters know a user who acts in
	// cluster c: whoever makes a workspace in c is its administrator by that name.
	NameElsewhere func(c cluster.Name, u user.Info) string
}

// LogicalClusters is where LogicalClusters are stored. They belong to no export.
func LogicalClusters() store.Resource {
	return store.CustomResource(schema.GroupResource{Group: core.GroupVersion.Group, Resource: "logicalclusters"}, "")
}

// WorkspaceResource is where Workspaces of an export with that identity are stored.
func WorkspaceResource(identity string) store.Resource {
	return store.CustomResource(schema.GroupResource{Group: tenancyapi.GroupVersion.Group, Resource: "workspaces"}, identity)
}

// url returns how clients reach a cluster by its name or path.
func (w *Workspaces) url(at string) string { return w.BaseURL + "/clusters/" + at }

// clusterKey is the key of the LogicalCluster in cluster c.
func clusterKey(c cluster.Name) store.Key {
	return store.Key{Resource: LogicalClusters(), Cluster: c, Name: core.LogicalClusterName}
}

// toUnstructured returns o as custom resources are stored.
func toUnstructured(o runtime.Object, kind schema.GroupVersionKind) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(kind)
	unstructured.RemoveNestedField(u.Object, "metadata", "resourceVersion")
	return u, nil
}

// fromUnstructured reads a stored custom resource.
func fromUnstructured[T any](o runtime.Object) (*T, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("custom resource is stored as %T", o)
	}
	t := new(T)
	return t, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, t)
}

// LogicalCluster returns the LogicalCluster of cluster c as it is now, nil if there is
// none.
func (w *Workspaces) LogicalCluster(ctx context.Context, c cluster.Name) (*core.LogicalCluster, error) {
	l, _, err := read[core.LogicalCluster](ctx, w.Store, clusterKey(c))
	return l, err
}
