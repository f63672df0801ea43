// Package auth hides who a request comes from and what it may do. Tenancy is a
// matter of the context only: the authenticators and the RBAC evaluation are
// those of Kubernetes, and read the logical cluster that the request is for from
// the context.
package auth

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/unforked/kcp/internal/cluster"
)

// Groups with a meaning of their own.
const (
	// AdminGroup is cluster-admin in every workspace, but not in system clusters.
	AdminGroup = "system:kcp:admin"

	// WorkspaceAccessGroup may enter every workspace, without further rights there.
	WorkspaceAccessGroup = "system:kcp:workspace:access"

	// LogicalClusterAdminGroup manages LogicalClusters from inside the system.
	LogicalClusterAdminGroup = "system:kcp:logical-cluster-admin"

	// ExternalLogicalClusterAdminGroup manages LogicalClusters of other shards.
	ExternalLogicalClusterAdminGroup = "system:kcp:external-logical-cluster-admin"

	// WorkspaceBootstrapperGroup fills new workspaces.
	WorkspaceBootstrapperGroup = "system:kcp:tenancy:workspace-bootstrapper"

	// ClusterGroupPrefix and the name of a cluster make the group that service
	// accounts of that cluster are in when they act in another one.
	ClusterGroupPrefix = "system:cluster:"
)

const (
	// ClusterNameKey in the extra of a user is the cluster of a service account.
	ClusterNameKey = "authentication.kcp.io/cluster-name"

	// ForeignServiceAccountPrefix begins the name of a service account wherever it
	// is not at home. Cluster, namespace and name follow, joined with colons.
	ForeignServiceAccountPrefix = "system:kcp:serviceaccount:"
)

// Fresh waits until whatever is known to be committed has been applied to the
// data that decisions read, and reports whether it has. A refusal is decided once
// more then, so that the first request after a change is not refused on old
// evidence. A request that is let in never waits.
type Fresh func(ctx context.Context) bool

func (f Fresh) caughtUp(ctx context.Context) bool { return f != nil && f(ctx) }

// seenFrom returns u as it is known in cluster c. Only service accounts differ:
// "system:serviceaccount:<namespace>:<name>" names another one in every cluster,
// so one from elsewhere must never be matched by that name.
func seenFrom(c cluster.Name, u user.Info) user.Info {
	if !isServiceAccount(u) {
		return u
	}
	home := u.GetExtra()[ClusterNameKey]
	switch {
	case len(home) == 0:
		// Somebody who may impersonate in c, or asks about an account in c, names one of c.
		return u
	case len(home) == 1 && home[0] == string(c):
		return u
	case len(home) == 1:
		if n, err := cluster.ParseName(home[0]); err == nil {
			return foreign(n, u)
		}
	}
	return &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllAuthenticated}}
}

// Elsewhere returns who everybody outside of cluster c takes a user for who acts in it:
// nobody in particular if he is not himself there.
func Elsewhere(c cluster.Name, u user.Info) user.Info {
	if !inScope(u, c) {
		return outOfScope(u)
	}
	if u = seenFrom(c, u); isServiceAccount(u) {
		return foreign(c, u)
	}
	return u
}

// NameElsewhere returns the name by which every other cluster knows a user who acts in
// cluster c. Only service accounts have another name than in c.
func NameElsewhere(c cluster.Name, u user.Info) string {
	if u = seenFrom(c, u); isServiceAccount(u) {
		u = foreign(c, u)
	}
	return u.GetName()
}

// foreign returns a service account of cluster home as every other cluster sees it.
func foreign(home cluster.Name, u user.Info) *user.DefaultInfo {
	extra := map[string][]string{ClusterNameKey: {string(home)}}
	if id := u.GetExtra()[user.CredentialIDKey]; len(id) > 0 {
		extra[user.CredentialIDKey] = id
	}
	account := strings.TrimPrefix(u.GetName(), serviceaccount.ServiceAccountUsernamePrefix)
	return &user.DefaultInfo{
		Name:   ForeignServiceAccountPrefix + string(home) + ":" + account,
		UID:    u.GetUID(),
		Groups: []string{user.AllAuthenticated, ClusterGroupPrefix + string(home)},
		Extra:  extra,
	}
}

func isServiceAccount(u user.Info) bool {
	return strings.HasPrefix(u.GetName(), serviceaccount.ServiceAccountUsernamePrefix)
}

func inGroup(u user.Info, group string) bool { return slices.Contains(u.GetGroups(), group) }
