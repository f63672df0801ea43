// Package lookup reads the objects that authentication and authorization need from the store:
// roles and bindings, service accounts and their secrets, and the identity providers of
// workspaces.
package lookup

import (
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/auth/authz"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
)

// RBACResource returns the stored resource of a kind of rbac.authorization.k8s.io.
func RBACResource(resource string) keys.Resource {
	return keys.NativeResource(schema.GroupResource{Group: rbacv1.GroupName, Resource: resource})
}

// converted returns a stored object as type T, converted if necessary.
func converted[T any](obj runtime.Object) (*T, error) {
	if o, ok := any(obj).(*T); ok {
		return o, nil
	}
	out := new(T)
	return out, legacyscheme.Scheme.Convert(obj, out, nil)
}

// RBAC holds the roles and bindings of all clusters, reduced to the fields that
// authorization reads.
type RBAC struct {
	roles               *feed.Table[*rbacv1.Role]
	clusterRoles        *feed.Table[*rbacv1.ClusterRole]
	roleBindings        *feed.Table[*rbacv1.RoleBinding]
	clusterRoleBindings *feed.Table[*rbacv1.ClusterRoleBinding]
}

var _ authz.RBAC = (*RBAC)(nil)

// NewRBAC returns the tables, which follow the change feed of the store.
func NewRBAC(s *store.Store) *RBAC {
	return &RBAC{
		roles: feed.NewTable(s.Feed(), RBACResource("roles"), slim(func(o *rbacv1.Role) *metav1.ObjectMeta { return &o.ObjectMeta })),
		clusterRoles: feed.NewTable(s.Feed(), RBACResource("clusterroles"),
			func(obj runtime.Object) (*rbacv1.ClusterRole, error) {
				o, err := converted[rbacv1.ClusterRole](obj)
				if err != nil {
					return nil, err
				}
				// Aggregated roles select other roles by label.
				o.ObjectMeta = metav1.ObjectMeta{Name: o.Name, UID: o.UID, Labels: o.Labels}
				return o, nil
			}),
		roleBindings: feed.NewTable(s.Feed(), RBACResource("rolebindings"),
			slim(func(o *rbacv1.RoleBinding) *metav1.ObjectMeta { return &o.ObjectMeta })),
		clusterRoleBindings: feed.NewTable(s.Feed(), RBACResource("clusterrolebindings"), slimBinding).IndexBy(bindingValues),
	}
}

// slimBinding is [slim] that keeps the label of bindings that apply to descendants.
func slimBinding(obj runtime.Object) (*rbacv1.ClusterRoleBinding, error) {
	descends := false
	b, err := slim(func(o *rbacv1.ClusterRoleBinding) *metav1.ObjectMeta {
		descends = o.Labels[core.DescendantsLabel] == "true"
		return &o.ObjectMeta
	})(obj)
	if err == nil && descends {
		b.Labels = map[string]string{core.DescendantsLabel: "true"}
	}
	return b, err
}

// descending is an index value of all ClusterRoleBindings that apply to descendants. The index
// also has their subjects with this prefix. It has the subjects of all ClusterRoleBindings.
const descending = "descending"

func subjectValue(s rbacv1.Subject) string {
	if s.Kind == rbacv1.ServiceAccountKind {
		return s.Kind + "/" + s.Namespace + "/" + s.Name
	}
	return s.Kind + "/" + s.Name
}

func bindingValues(b *rbacv1.ClusterRoleBinding) []string {
	var all []string
	descends := b.Labels != nil
	if descends {
		all = append(all, descending)
	}
	for _, s := range b.Subjects {
		v := subjectValue(s)
		if all = append(all, v); descends {
			all = append(all, descending+"/"+v)
		}
	}
	return all
}

// slim returns a function that converts an object and drops its metadata except name and
// namespace.
func slim[T any](metadata func(*T) *metav1.ObjectMeta) func(runtime.Object) (*T, error) {
	return func(obj runtime.Object) (*T, error) {
		o, err := converted[T](obj)
		if err != nil {
			return nil, fmt.Errorf("read %T: %w", obj, err)
		}
		m := metadata(o)
		*m = metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name}
		return o, nil
	}
}

// Role returns a role.
func (t *RBAC) Role(c cluster.Name, ns, name string) (*rbacv1.Role, bool) {
	return t.roles.Get(c, ns, name)
}

// ClusterRole returns a cluster role.
func (t *RBAC) ClusterRole(c cluster.Name, name string) (*rbacv1.ClusterRole, bool) {
	return t.clusterRoles.Get(c, "", name)
}

// ClusterRoles returns the cluster roles of a cluster.
func (t *RBAC) ClusterRoles(c cluster.Name) []*rbacv1.ClusterRole {
	return t.clusterRoles.List(c, "")
}

// RoleBindings returns the role bindings of a namespace.
func (t *RBAC) RoleBindings(c cluster.Name, ns string) []*rbacv1.RoleBinding {
	return t.roleBindings.List(c, ns)
}

// ClusterRoleBindings returns the cluster role bindings of a cluster.
func (t *RBAC) ClusterRoleBindings(c cluster.Name) []*rbacv1.ClusterRoleBinding {
	return t.clusterRoleBindings.List(c, "")
}

// Descending returns the cluster role bindings of a cluster that apply to its descendants.
func (t *RBAC) Descending(c cluster.Name) []*rbacv1.ClusterRoleBinding {
	return t.clusterRoleBindings.By(descending, c)
}

// Table returns the table of cluster roles.
func (t *RBAC) Table() *feed.Table[*rbacv1.ClusterRole] { return t.clusterRoles }

// ClustersOf returns the clusters with cluster role bindings that name a subject.
func (t *RBAC) ClustersOf(s rbacv1.Subject) []cluster.Name {
	return t.clusterRoleBindings.ClustersBy(subjectValue(s))
}

// ClustersAbove returns those of [RBAC.ClustersOf] whose bindings apply to descendants.
func (t *RBAC) ClustersAbove(s rbacv1.Subject) []cluster.Name {
	return t.clusterRoleBindings.ClustersBy(descending + "/" + subjectValue(s))
}
