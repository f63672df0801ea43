package auth

import (
	"encoding/json"
	"fmt"
	"maps"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/unforked/kcp/internal/cluster"
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

// Effective calls yield with every identity whose rights u has in cluster c, u first, until
// yield returns false. Users without warrants have one identity.
func Effective(c cluster.Name, u user.Info, yield func(user.Info) bool) {
	if extra := u.GetExtra(); !IsServiceAccount(u) && (len(extra) == 0 || extra[ScopesKey] == nil && extra[WarrantKey] == nil) {
		yield(u)
		return
	}
	left := MaxEffective
	flatten(c, u, &left, yield)
}

// flatten yields the identity of u in cluster c, then those of its warrants, recursively.
// It stops after left identities, and reports whether to go on.
func flatten(c cluster.Name, u user.Info, left *int, yield func(user.Info) bool) bool {
	if *left--; *left < 0 {
		return false
	}
	if !InScope(u, c) {
		if !yield(OutOfScope(u)) {
			return false
		}
	} else if !yield(u) {
		return false
	} else if IsServiceAccount(u) {
		// Bindings of its own cluster may use its foreign name too.
		if self := AccountIn(c, u); IsServiceAccount(self) && !yield(Foreign(c, self)) {
			return false
		}
	}
	for _, value := range u.GetExtra()[WarrantKey] {
		var w Warrant
		if err := json.Unmarshal([]byte(value), &w); err != nil {
			continue // an invalid warrant grants nothing
		}
		held := &user.DefaultInfo{Name: w.User, UID: w.UID, Groups: w.Groups, Extra: w.Extra}
		if IsServiceAccount(held) && len(w.Extra[ClusterNameKey]) != 1 {
			continue // without its cluster, the name matches another account in every cluster
		}
		if !flatten(c, held, left, yield) {
			return false
		}
	}
	return true
}

// Unbounded returns u without rights that are limited to some clusters: its own rights if u
// has scopes, and warrants for users with scopes.
func Unbounded(u user.Info) user.Info {
	left := MaxEffective
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
