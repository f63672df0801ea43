package auth

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/unforked/kcp/internal/cluster"
)

const (
	// ScopesKey in the extra of a user limits the clusters in which the user has an
	// identity. Each value has alternatives, as in "cluster:a,cluster:b"; all values must
	// allow the cluster. In other clusters the user is anonymous.
	ScopesKey = "authentication.kcp.io/scopes"

	// WarrantKey in the extra of a user has further users, each a [Warrant], whose rights
	// the user has too.
	WarrantKey = "authorization.kcp.io/warrant"

	// ScopePrefix begins the name of a cluster in a scope.
	ScopePrefix = "cluster:"

	// Agents is the group of all agents of extensions. They are neither in system:authenticated, so that
	// no role for all users is theirs, nor in system:unauthenticated, whose HTTP/2 connections
	// kube-apiserver's filters end after each request.
	Agents = "system:kcp:agents"

	// MaxEffective limits the users in the tree of one user's warrants.
	MaxEffective = 64
)

// ReservedExtra reports whether a key in the extra of a user gives rights or changes the
// identity. Only the server, proxies and webhooks may set these keys.
func ReservedExtra(key string) bool {
	domain, _, _ := strings.Cut(strings.ToLower(key), "/")
	return domain == "kcp.io" || strings.HasSuffix(domain, ".kcp.io")
}

// InScope reports whether the scopes of u allow cluster c.
func InScope(u user.Info, c cluster.Name) bool {
	for _, value := range u.GetExtra()[ScopesKey] {
		found := false
		for scope := range strings.SplitSeq(value, ",") {
			name, ok := strings.CutPrefix(scope, ScopePrefix)
			found = found || ok && name == string(c) && c != "" && c != cluster.All
		}
		if !found {
			return false
		}
	}
	return true
}

// OutOfScope returns the identity of u in a cluster outside of its scopes.
func OutOfScope(u user.Info) user.Info {
	nobody := &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}
	if InGroup(u, user.AllAuthenticated) {
		nobody.Groups[0] = user.AllAuthenticated
	}
	for _, value := range u.GetExtra()[ScopesKey] {
		for scope := range strings.SplitSeq(value, ",") {
			name, ok := strings.CutPrefix(scope, ScopePrefix)
			if _, err := cluster.ParseName(name); ok && err == nil && !InGroup(nobody, ClusterGroupPrefix+name) {
				nobody.Groups = append(nobody.Groups, ClusterGroupPrefix+name)
			}
		}
	}
	return nobody
}

// Scoped reports whether u has rights in some clusters only.
func Scoped(u user.Info) bool { return len(u.GetExtra()[ScopesKey]) > 0 }

// Within returns u with rights in cluster c alone: checks in any other cluster treat the
// user as out of scope. A user who is out of scope in c stays out of scope.
func Within(c cluster.Name, u user.Info) user.Info {
	if !InScope(u, c) {
		u = OutOfScope(u)
	}
	extra := maps.Clone(u.GetExtra())
	if extra == nil {
		extra = map[string][]string{}
	}
	extra[ScopesKey] = append(slices.Clone(extra[ScopesKey]), ScopePrefix+string(c))
	return &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra}
}
