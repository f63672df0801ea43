package auth

import (
	"maps"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/unforked/kcp/internal/cluster"
)

// A MatchingSubject is a subject that matches a user: in cluster In, or in all clusters if In is
// empty.
type MatchingSubject struct {
	In      cluster.Name
	Subject rbacv1.Subject
}

// MatchingSubjects returns the subjects of bindings that match u, or a user of one of its
// warrants.
func MatchingSubjects(u user.Info) []MatchingSubject {
	var all []MatchingSubject
	add := func(in cluster.Name, u user.Info) {
		all = append(all, MatchingSubject{in, rbacv1.Subject{Kind: rbacv1.UserKind, Name: u.GetName()}})
		for _, g := range u.GetGroups() {
			all = append(all, MatchingSubject{in, rbacv1.Subject{Kind: rbacv1.GroupKind, Name: g}})
		}
	}
	unscoped := &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: maps.Clone(u.GetExtra())}
	delete(unscoped.Extra, ScopesKey) // callers apply the scopes
	Effective("", unscoped, func(e user.Info) bool {
		home := e.GetExtra()[ClusterNameKey]
		if !IsServiceAccount(e) || len(home) != 1 {
			add("", e)
			return true
		}
		at := cluster.Name(home[0])
		add("", Foreign(at, e))
		add(at, e)
		if ns, name, err := serviceaccount.SplitUsername(e.GetName()); err == nil {
			all = append(all, MatchingSubject{at, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: name}})
		}
		return true
	})
	return all
}
