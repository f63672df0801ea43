package tenancy

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
)

// A BuiltIn is an APIExport in the root workspace with kinds of the server. The hash of the
// secret of its name, in [ExportsNamespace], is its identity.
type BuiltIn struct {
	Name string
	// Short is its name in the names of RBAC objects.
	Short string
	// Kinds are the names of the CustomResourceDefinitions of its kinds.
	Kinds []string
	// Everywhere is true if all users may bind it, and universal workspaces do.
	Everywhere bool
	// Limited is true if RBAC in the root workspace limits what its consumers may do.
	Limited bool
	// Given is true if every logical cluster has the kinds, also without a binding.
	Given bool
}

// BuiltIns returns the built-in exports. The root workspace binds all of them.
func BuiltIns() []BuiltIn {
	return []BuiltIn{
		{Name: Export, Short: "tenancy", Kinds: []string{"workspaceauthenticationconfigurations.tenancy.kcp.io", "workspaces.tenancy.kcp.io", "workspacetypes.tenancy.kcp.io"}, Everywhere: true, Limited: true},
		{Name: TopologyExport, Short: "topology", Kinds: []string{"partitions.topology.kcp.io", "partitionsets.topology.kcp.io"}, Everywhere: true},
		{Name: ShardExport, Short: "shards", Kinds: []string{"shards.core.kcp.io"}},
		{Name: CacheExport, Short: "cache", Kinds: []string{"clustercachedresourceendpointslices.cache.kcp.io", "clustercachedresources.cache.kcp.io"}, Given: true},
		{Name: "migration.kcp.io", Short: "migration"}, // without kinds: there is one shard
	}
}

// BuiltInOf returns the built-in export of a kind, by the name of its
// CustomResourceDefinition.
func BuiltInOf(kind string) (BuiltIn, bool) {
	all := BuiltIns()
	i := slices.IndexFunc(all, func(b BuiltIn) bool { return slices.Contains(b.Kinds, kind) })
	if i < 0 {
		return BuiltIn{}, false
	}
	return all[i], true
}

// IsBuiltIn reports whether an export of cluster c is a built-in one.
func IsBuiltIn(c cluster.Name, export string) bool {
	return c == cluster.Root && slices.ContainsFunc(BuiltIns(), func(b BuiltIn) bool { return b.Name == export })
}

// IsKind reports whether a resource is a kind of a built-in export.
func IsKind(gr schema.GroupResource) bool {
	_, ok := BuiltInOf(gr.String())
	return ok
}

// IsGiven reports whether every logical cluster has a kind of a built-in export, also without a
// binding.
func IsGiven(gr schema.GroupResource) bool {
	b, ok := BuiltInOf(gr.String())
	return ok && b.Given
}

// everywhere returns the default bindings of universal workspaces.
func everywhere() []tenancyapi.APIExportReference {
	var all []tenancyapi.APIExportReference
	for _, b := range BuiltIns() {
		if b.Everywhere {
			all = append(all, tenancyapi.APIExportReference{Path: string(cluster.Root), Export: b.Name})
		}
	}
	return all
}
