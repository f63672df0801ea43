package auth

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/unforked/kcp/internal/cluster"
)

const (
	// ScopesKey in the extra of a user says in which clusters he is himself. Each
	// value has alternatives, as in "cluster:a,cluster:b"; all values must allow the
	// cluster. Elsewhere he is nobody in particular.
	ScopesKey = "authentication.kcp.io/scopes"

	// WarrantKey in the extra of a user has further users, each a [Warrant], whose
	// rights he has too.
	WarrantKey = "authorization.kcp.io/warrant"

	// ScopePrefix begins the name of a cluster in a scope.
	ScopePrefix = "cluster:"

	// maxEffective bounds how many users one can stand for.
	maxEffective = 64
)

// A Warrant is somebody whose rights another user has too, in addition to his own.
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

// reservedExtra are the keys in the extra of a user that give him rights, or take him
// for somebody else. Only the server and those who relay may set them.
func reservedExtra(key string) bool {
	domain, _, _ := strings.Cut(strings.ToLower(key), "/")
	return domain == "kcp.io" || strings.HasSuffix(domain, ".kcp.io")
}

// inScope reports whether u is himself in cluster c.
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

// outOfScope returns who u is in a cluster that he is not in the scope of.
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

// effective calls yield with everybody whose rights u has in cluster c, first of all
// himself, until it returns false. Nearly always that is only him.
func effective(c cluster.Name, u user.Info, yield func(user.Info) bool) {
	if extra := u.GetExtra(); !isServiceAccount(u) && (len(extra) == 0 || extra[ScopesKey] == nil && extra[WarrantKey] == nil) {
		yield(u)
		return
	}
	left := maxEffective
	flatten(c, u, &left, yield)
}

// flatten yields who u is in cluster c, and his warrants, and theirs, as long as some
// are left, and returns whether to go on.
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
		// Bindings at home may name it as those anywhere else do.
		if self := seenFrom(c, u); isServiceAccount(self) && !yield(foreign(c, self)) {
			return false
		}
	}
	for _, value := range u.GetExtra()[WarrantKey] {
		var w Warrant
		if err := json.Unmarshal([]byte(value), &w); err != nil {
			continue // which grants nothing
		}
		held := &user.DefaultInfo{Name: w.User, UID: w.UID, Groups: w.Groups, Extra: w.Extra}
		if isServiceAccount(held) && len(w.Extra[ClusterNameKey]) != 1 {
			continue // it would be another account in every cluster
		}
		if !flatten(c, held, left, yield) {
			return false
		}
	}
	return true
}

// IsMember reports whether u, or somebody whose rights he has, is in a group where
// he acts in cluster c.
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

// privileged reports whether u may do anything in cluster c: he himself, as warrants
// do not make anybody that.
func privileged(c cluster.Name, u user.Info) bool {
	return inGroup(u, user.SystemPrivilegedGroup) && inScope(u, c)
}

// seenAt returns a user who acts in cluster c as bindings in another cluster know
// him: a service account of that cluster by its name there.
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
