package authz

import (
	"context"
	"maps"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
)

// memory has the RBAC data of some clusters in memory.
type memory map[cluster.Name]*stored

type stored struct {
	roles               map[string]*rbacv1.Role // by namespace/name
	clusterRoles        map[string]*rbacv1.ClusterRole
	roleBindings        map[string][]*rbacv1.RoleBinding // by namespace
	clusterRoleBindings []*rbacv1.ClusterRoleBinding
}

func (m memory) at(c cluster.Name) *stored {
	if m[c] == nil {
		m[c] = &stored{map[string]*rbacv1.Role{}, map[string]*rbacv1.ClusterRole{}, map[string][]*rbacv1.RoleBinding{}, nil}
	}
	return m[c]
}

func (m memory) exists(_ context.Context, c cluster.Name) bool { return m[c] != nil }

func (m memory) Role(c cluster.Name, namespace, name string) (*rbacv1.Role, bool) {
	if m[c] == nil {
		return nil, false
	}
	r, ok := m[c].roles[namespace+"/"+name]
	return r, ok
}

func (m memory) ClusterRole(c cluster.Name, name string) (*rbacv1.ClusterRole, bool) {
	if m[c] == nil {
		return nil, false
	}
	r, ok := m[c].clusterRoles[name]
	return r, ok
}

func (m memory) ClusterRoles(c cluster.Name) []*rbacv1.ClusterRole {
	if m[c] == nil {
		return nil
	}
	return slices.Collect(maps.Values(m[c].clusterRoles))
}

func (m memory) RoleBindings(c cluster.Name, namespace string) []*rbacv1.RoleBinding {
	if m[c] == nil {
		return nil
	}
	return m[c].roleBindings[namespace]
}

func (m memory) ClusterRoleBindings(c cluster.Name) []*rbacv1.ClusterRoleBinding {
	if m[c] == nil {
		return nil
	}
	return m[c].clusterRoleBindings
}

func (m memory) Descending(c cluster.Name) []*rbacv1.ClusterRoleBinding {
	return slices.DeleteFunc(slices.Clone(m.ClusterRoleBindings(c)), func(b *rbacv1.ClusterRoleBinding) bool { return b.Labels[core.DescendantsLabel] != "true" })
}

func (s *stored) clusterRole(name string, rules ...rbacv1.PolicyRule) {
	s.clusterRoles[name] = &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
}

func (s *stored) bind(name, role string, subjects ...rbacv1.Subject) {
	s.clusterRoleBindings = append(s.clusterRoleBindings, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	})
}

func (s *stored) bindIn(namespace, kind, role string, subjects ...rbacv1.Subject) {
	s.roleBindings[namespace] = append(s.roleBindings[namespace], &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: role}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role},
	})
}

func userSubject(name string) rbacv1.Subject  { return rbacv1.Subject{Kind: "User", Name: name} }
func groupSubject(name string) rbacv1.Subject { return rbacv1.Subject{Kind: "Group", Name: name} }
func accountSubject(namespace, name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: "ServiceAccount", Namespace: namespace, Name: name}
}

var (
	everything = rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}
	enter      = rbacv1.PolicyRule{Verbs: []string{"access"}, NonResourceURLs: []string{"/"}}
)

// resource is a request such as "get configmaps in namespace default".
func resource(u user.Info, verb, resource, namespace string) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{User: u, Verb: verb, Resource: resource, APIVersion: "v1", Namespace: namespace, ResourceRequest: true}
}

func nonResource(u user.Info, verb, path string) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{User: u, Verb: verb, Path: path}
}

func newAuthorizer(t testing.TB, o Authorization) *Authorizer {
	t.Helper()
	z, err := NewAuthorizer(o)
	if err != nil {
		t.Fatal(err)
	}
	return z
}
