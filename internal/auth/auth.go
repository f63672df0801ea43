// Package auth authenticates and authorizes requests, with the authenticators and the RBAC
// evaluation of Kubernetes. It hides tenancy: both read the logical cluster of a request
// from its context.
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
	// ClusterNameKey is the key in a user's extra that holds the cluster of a service
	// account.
	ClusterNameKey = "authentication.kcp.io/cluster-name"

	// ForeignServiceAccountPrefix begins the name of a service account in every cluster but
	// its own. Cluster, namespace and name follow, joined with colons.
	ForeignServiceAccountPrefix = "system:kcp:serviceaccount:"
)

// Fresh waits until the data that decisions read includes all commits known so far. It
// reports whether it waited for newer data. A refused request is then decided again, so
// that the first request after a change is not refused on old data.
type Fresh func(ctx context.Context) bool

// Current confirms that the data that decisions read is recent enough to allow a request.
// It reports whether it waited for newer data: the request is then decided again. On an
// error the data may be too old, and the request must be refused.
type Current func(ctx context.Context) (waited bool, err error)

// confirms reports whether an allowed request has to be decided again. On an error the
// request must be refused.
func (c Current) confirms(ctx context.Context) (again bool, err error) {
	if c == nil {
		return false, nil
	}
	return c(ctx)
}

func (f Fresh) caughtUp(ctx context.Context) bool { return f != nil && f(ctx) }

// seenFrom returns the identity of u in cluster c. Only service accounts differ:
// "system:serviceaccount:<namespace>:<name>" names another account in every cluster, so an
// account of another cluster must never be matched by that name.
func seenFrom(c cluster.Name, u user.Info) user.Info {
	if !isServiceAccount(u) {
		return u
	}
	home := u.GetExtra()[ClusterNameKey]
	switch {
	case len(home) == 0:
		// Impersonation and access reviews in c name accounts of c without their cluster.
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

// Elsewhere returns the identity that every other cluster sees of a user u acting in
// cluster c. A user who is out of scope in c is anonymous.
func Elsewhere(c cluster.Name, u user.Info) user.Info {
	if !inScope(u, c) {
		return outOfScope(u)
	}
	if u = seenFrom(c, u); isServiceAccount(u) {
		return foreign(c, u)
	}
	return u
}

// NameElsewhere returns the name that every other cluster sees of a user acting in cluster
// c. Only service accounts have another name than in c.
func NameElsewhere(c cluster.Name, u user.Info) string {
	if u = seenFrom(c, u); isServiceAccount(u) {
		u = foreign(c, u)
	}
	return u.GetName()
}

// foreign returns the identity that every other cluster sees of a service account of home.
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
