package tree

import (
	"strings"

	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
)

// maxDepth limits walks to the root, so that damaged data cannot make them endless. No path has so many
// workspaces.
const maxDepth = 10_000

// Tenant returns the tenant of cluster c, with which it shares limits. That is the nearest
// workspace at or above c whose type is a boundary, or else the topmost workspace below
// root, or the home that contains c. Clusters without a Workspace are their own tenants.
// Tenant reads one row of a table in memory per level.
func (t *Tree) Tenant(c cluster.Name) cluster.Name {
	for range maxDepth {
		root, ok := t.Cluster(c)
		if !ok || root.Parent == "" || root.Parent == cluster.Root || root.Parent.System() || t.boundary != nil && t.boundary(root.Type) {
			return c
		}
		c = root.Parent
	}
	return c
}

// Boundary reports whether workspaces of a type are tenants of their own. id is the path and
// name of the type, as in "root:organization". Only types in the root workspace count, so
// users cannot get more shares with types of their own.
func (t *Types) Boundary(id string) bool {
	name, ok := strings.CutPrefix(id, string(cluster.Root)+":")
	if !ok || strings.Contains(name, ":") {
		return false
	}
	content, ok := t.table.Get(cluster.Root, "", name)
	return ok && content.boundary
}

// isBoundary reports whether the annotations of a type make its workspaces tenants.
func isBoundary(annotations map[string]string) bool {
	return annotations[tenancyapi.TenantAnnotation] == "true"
}
