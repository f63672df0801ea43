package auth

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
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

	// maxEffective limits the users in the tree of one user's warrants.
	maxEffective = 64
)

// A Warrant gives a user the rights of another one, in addition to their own.
type Warrant struct {
	User   string              `json:"user,omitempty"`
	Groups []string            `json:"groups,omitempty"`
	UID    string              `json:"uid,omitempty"`
	Extra  map[string][]string `json:"extra,omitempty"`
}

// Encode returns w as a value of [WarrantKey].
func (w Warrant) Encode() (string, error) {
	text, err := json.Marshal(w)
	if err != nil {
		return "", fmt.Errorf("write the warrant for %q: %w", w.User, err)
	}
	return string(text), nil
}

// reservedExtra reports whether a key in the extra of a user gives rights or changes the
// identity. Only the server, proxies and webhooks may set these keys.
func reservedExtra(key string) bool {
	domain, _, _ := strings.Cut(strings.ToLower(key), "/")
	return domain == "kcp.io" || strings.HasSuffix(domain, ".kcp.io")
}

// inScope reports whether the scopes of u allow cluster c.
func inScope(u user.Info, c cluster.Name) bool {
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

// outOfScope returns the identity of u in a cluster outside of its scopes.
func outOfScope(u user.Info) user.Info {
	nobody := &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}
	if inGroup(u, user.AllAuthenticated) {
		nobody.Groups[0] = user.AllAuthenticated
	}
	for _, value := range u.GetExtra()[ScopesKey] {
		for scope := range strings.SplitSeq(value, ",") {
			name, ok := strings.CutPrefix(scope, ScopePrefix)
			if _, err := cluster.ParseName(name); ok && err == nil && !inGroup(nobody, ClusterGroupPrefix+name) {
				nobody.Groups = append(nobody.Groups, ClusterGroupPrefix+name)
			}
		}
	}
	return nobody
}

// effective calls yield with every identity whose rights u has in cluster c, u first, until
// yield returns false. Users without warrants have one identity.
func effective(c cluster.Name, u user.Info, yield func(user.Info) bool) {
	if extra := u.GetExtra(); !isServiceAccount(u) && (len(extra) == 0 || extra[ScopesKey] == nil && extra[WarrantKey] == nil) {
		yield(u)
		return
	}
	left := maxEffective
	flatten(c, u, &left, yield)
}

// flatten yields the identity of u in cluster c, then those of its warrants, recursively.
// It stops after left identities, and reports whether to go on.
func flatten(c cluster.Name, u user.Info, left *int, yield func(user.Info) bool) bool {
	if *left--; *left < 0 {
		return false
	}
	if !inScope(u, c) {
		if !yield(outOfScope(u)) {
			return false
		}
	} else if !yield(u) {
		return false
	} else if isServiceAccount(u) {
		// Bindings of its own cluster may use its foreign name too.
		if self := seenFrom(c, u); isServiceAccount(self) && !yield(foreign(c, self)) {
			return false
		}
	}
	for _, value := range u.GetExtra()[WarrantKey] {
		var w Warrant
		if err := json.Unmarshal([]byte(value), &w); err != nil {
			continue // an invalid warrant grants nothing
		}
		held := &user.DefaultInfo{Name: w.User, UID: w.UID, Groups: w.Groups, Extra: w.Extra}
		if isServiceAccount(held) && len(w.Extra[ClusterNameKey]) != 1 {
			continue // without its cluster, the name matches another account in every cluster
		}
		if !flatten(c, held, left, yield) {
			return false
		}
	}
	return true
}

// Scoped reports whether u has rights in some clusters only.
func Scoped(u user.Info) bool { return len(u.GetExtra()[ScopesKey]) > 0 }

// unbounded returns u without rights that are limited to some clusters: its own rights if u
// has scopes, and warrants for users with scopes.
func unbounded(u user.Info) user.Info {
	left := maxEffective
	return unboundedUpTo(u, &left)
}

func unboundedUpTo(u user.Info, left *int) user.Info {
	*left--
	free := &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: maps.Clone(u.GetExtra())}
	if Scoped(u) {
		free = &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}, Extra: map[string][]string{}}
	}
	delete(free.Extra, WarrantKey)
	for _, value := range u.GetExtra()[WarrantKey] {
		var w Warrant
		if *left <= 0 || json.Unmarshal([]byte(value), &w) != nil || len(w.Extra[ScopesKey]) > 0 {
			continue
		}
		held := unboundedUpTo(&user.DefaultInfo{Name: w.User, UID: w.UID, Groups: w.Groups, Extra: w.Extra}, left)
		text, err := Warrant{User: held.GetName(), UID: held.GetUID(), Groups: held.GetGroups(), Extra: held.GetExtra()}.Encode()
		if err == nil { // a warrant that was decoded can be encoded
			free.Extra[WarrantKey] = append(free.Extra[WarrantKey], text)
		}
	}
	return free
}

// IsMember reports whether u, or a user of one of its warrants, is in one of groups in
// cluster c.
func IsMember(c cluster.Name, u user.Info, groups ...string) bool {
	found := false
	effective(c, u, func(e user.Info) bool {
		for _, g := range seenFrom(c, e).GetGroups() {
			found = found || slices.Contains(groups, g)
		}
		return !found
	})
	return found
}

// privileged reports whether u itself may do anything in cluster c. Warrants do not count.
func privileged(c cluster.Name, u user.Info) bool {
	return inGroup(u, user.SystemPrivilegedGroup) && inScope(u, c)
}

// seenAt returns the identity of a user acting in cluster c for bindings in cluster at. A
// service account of at has its local name there.
func seenAt(at, c cluster.Name, u user.Info) user.Info {
	u = seenFrom(c, u)
	if isServiceAccount(u) {
		u = foreign(c, u)
	}
	home := u.GetExtra()[ClusterNameKey]
	if len(home) != 1 || home[0] != string(at) {
		return u
	}
	account, ok := strings.CutPrefix(u.GetName(), ForeignServiceAccountPrefix+string(at)+":")
	if !ok {
		return u
	}
	namespace, _, _ := strings.Cut(account, ":")
	return &user.DefaultInfo{
		Name: serviceaccount.ServiceAccountUsernamePrefix + account, UID: u.GetUID(), Extra: u.GetExtra(),
		Groups: append(serviceaccount.MakeGroupNames(namespace), user.AllAuthenticated),
	}
}
