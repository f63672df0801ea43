package auth

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/unforked/kcp/internal/cluster"
)

// Groups with a meaning of their own.
const (
	// AdminGroup has the role cluster-admin in every workspace, but not in system clusters.
	AdminGroup = "system:kcp:admin"

	// WorkspaceAccessGroup may enter every workspace. It has no further rights there.
	WorkspaceAccessGroup = "system:kcp:workspace:access"

	// LogicalClusterAdminGroup manages LogicalClusters from inside the system.
	LogicalClusterAdminGroup = "system:kcp:logical-cluster-admin"

	// ExternalLogicalClusterAdminGroup manages LogicalClusters of other shards.
	ExternalLogicalClusterAdminGroup = "system:kcp:external-logical-cluster-admin"

	// WorkspaceBootstrapperGroup creates the initial content of new workspaces.
	WorkspaceBootstrapperGroup = "system:kcp:tenancy:workspace-bootstrapper"

	// ClusterGroupPrefix begins the group of all service accounts of one cluster when they
	// act in another one. The name of their cluster follows.
	ClusterGroupPrefix = "system:cluster:"
)

const (
	// InitializerGroupPrefix begins the group of clients that initialize a cluster. The
	// name of the initializer follows. Only the server adds users to this group.
	InitializerGroupPrefix = "system:kcp:initializer:"

	// TerminatorGroupPrefix is as [InitializerGroupPrefix], for terminators.
	TerminatorGroupPrefix = "system:kcp:terminator:"

	// ProviderGroupPrefix is as [InitializerGroupPrefix], for providers of exports in the
	// clusters that bind the export.
	ProviderGroupPrefix = "system:kcp:provider:"
)

// InGroup reports whether a user is in a group.
func InGroup(u user.Info, group string) bool { return slices.Contains(u.GetGroups(), group) }

// IsViewGroup reports whether g is a group of users of views. Only the server adds users to
// these groups.
func IsViewGroup(g string) bool {
	return strings.HasPrefix(g, InitializerGroupPrefix) || strings.HasPrefix(g, TerminatorGroupPrefix) || strings.HasPrefix(g, ProviderGroupPrefix)
}

// MembersOnly returns the groups that only their members may impersonate. These groups have
// rights beyond one cluster, and every owner of a workspace may impersonate in it.
func MembersOnly() []string {
	return []string{
		user.SystemPrivilegedGroup,
		LogicalClusterAdminGroup,
		ExternalLogicalClusterAdminGroup,
		WorkspaceBootstrapperGroup,
		AdminGroup,
		user.AllAuthenticated,
		Agents, // its requests have the priority of nodes
	}
}

// IsPrivileged reports whether a user is in system:masters, which may do anything anywhere.
func IsPrivileged(u user.Info) bool { return InGroup(u, user.SystemPrivilegedGroup) }

// PrivilegedIn reports whether u itself may do anything in cluster c. Warrants do not count.
func PrivilegedIn(c cluster.Name, u user.Info) bool {
	return InGroup(u, user.SystemPrivilegedGroup) && InScope(u, c)
}

// IsMember reports whether u, or a user of one of its warrants, is in one of groups in
// cluster c.
func IsMember(c cluster.Name, u user.Info, groups ...string) bool {
	found := false
	Effective(c, u, func(e user.Info) bool {
		for _, g := range AccountIn(c, e).GetGroups() {
			found = found || slices.Contains(groups, g)
		}
		return !found
	})
	return found
}

// Unprivileged returns u without the groups and warrants that give it more rights than RBAC
// of a cluster does.
func Unprivileged(u user.Info) user.Info {
	beyond := func(g string) bool {
		return slices.Contains(MembersOnly(), g) || g == WorkspaceAccessGroup || IsViewGroup(g)
	}
	extra := maps.Clone(u.GetExtra())
	delete(extra, WarrantKey)
	groups := append(slices.DeleteFunc(slices.Clone(u.GetGroups()), beyond), user.AllAuthenticated)
	return &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: groups, Extra: extra}
}
