package auth

import (
	"fmt"
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

	// ReservedPrefix begins the names of users and groups that the server gives a meaning.
	ReservedPrefix = "system:"

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

// OfWorkspace returns the user of credentials that only workspace c accepts: in the scope of that
// workspace alone, without reserved groups and extra keys. An empty or reserved name is an error.
func OfWorkspace(c cluster.Name, u user.Info) (*user.DefaultInfo, error) {
	if strings.HasPrefix(u.GetName(), ReservedPrefix) || u.GetName() == "" {
		return nil, fmt.Errorf("names that begin with %q are reserved", ReservedPrefix)
	}
	out := &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Extra: map[string][]string{}}
	for _, g := range u.GetGroups() {
		if !strings.HasPrefix(g, ReservedPrefix) {
			out.Groups = append(out.Groups, g)
		}
	}
	for key, values := range u.GetExtra() {
		if !strings.Contains(strings.ToLower(key), "kcp.io") {
			out.Extra[key] = values
		}
	}
	out.Extra[ScopesKey] = []string{ScopePrefix + string(c)}
	out.Extra[ClusterNameKey] = []string{string(c)}
	return out, nil
}
