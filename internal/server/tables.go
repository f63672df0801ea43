package server

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/store"
)

func rbacResource(resource string) store.Resource {
	return store.NativeResource(schema.GroupResource{Group: rbacv1.GroupName, Resource: resource})
}

// converted returns what a stored object is in the version T.
func converted[T any](obj runtime.Object) (*T, error) {
	if o, ok := any(obj).(*T); ok {
		return o, nil
	}
	out := new(T)
	return out, legacyscheme.Scheme.Convert(obj, out, nil)
}

// rbacTables hold the roles and bindings of all clusters, without what
// authorization does not read.
type rbacTables struct {
	roles               *store.Table[*rbacv1.Role]
	clusterRoles        *store.Table[*rbacv1.ClusterRole]
	roleBindings        *store.Table[*rbacv1.RoleBinding]
	clusterRoleBindings *store.Table[*rbacv1.ClusterRoleBinding]
}

var _ auth.RBAC = (*rbacTables)(nil)

func newRBACTables(s *store.Store) *rbacTables {
	return &rbacTables{
		roles: store.NewTable(s, rbacResource("roles"), slim(func(o *rbacv1.Role) *metav1.ObjectMeta { return &o.ObjectMeta })),
		clusterRoles: store.NewTable(s, rbacResource("clusterroles"),
			func(obj runtime.Object) (*rbacv1.ClusterRole, error) {
				o, err := converted[rbacv1.ClusterRole](obj)
				if err != nil {
					return nil, err
				}
				// By their labels other roles take in what they grant.
				o.ObjectMeta = metav1.ObjectMeta{Name: o.Name, UID: o.UID, Labels: o.Labels}
				return o, nil
			}),
		roleBindings: store.NewTable(s, rbacResource("rolebindings"),
			slim(func(o *rbacv1.RoleBinding) *metav1.ObjectMeta { return &o.ObjectMeta })),
		clusterRoleBindings: store.NewTable(s, rbacResource("clusterrolebindings"), slimBinding).IndexBy(bindingValues),
	}
}

// slimBinding is slim that keeps whether the binding holds below its cluster.
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

// Values by which ClusterRoleBindings are found: whether they hold below their
// cluster, and whom they name, with a prefix for those that do.
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

// slim converts an object and drops its metadata but for name and namespace.
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

func (t *rbacTables) Role(c cluster.Name, ns, name string) (*rbacv1.Role, bool) {
	return t.roles.Get(c, ns, name)
}

func (t *rbacTables) ClusterRole(c cluster.Name, name string) (*rbacv1.ClusterRole, bool) {
	return t.clusterRoles.Get(c, "", name)
}

func (t *rbacTables) ClusterRoles(c cluster.Name) []*rbacv1.ClusterRole {
	return t.clusterRoles.List(c, "")
}

func (t *rbacTables) RoleBindings(c cluster.Name, ns string) []*rbacv1.RoleBinding {
	return t.roleBindings.List(c, ns)
}

func (t *rbacTables) ClusterRoleBindings(c cluster.Name) []*rbacv1.ClusterRoleBinding {
	return t.clusterRoleBindings.List(c, "")
}

func (t *rbacTables) Descending(c cluster.Name) []*rbacv1.ClusterRoleBinding {
	return t.clusterRoleBindings.By(descending, c)
}

// newNamespaceTable holds when each namespace began to be deleted, nil for one
// that did not.
func newNamespaceTable(s *store.Store) *store.Table[*metav1.Time] {
	return store.NewTable(s, store.NativeResource(schema.GroupResource{Resource: "namespaces"}), func(obj runtime.Object) (*metav1.Time, error) {
		o, err := converted[corev1.Namespace](obj)
		if err != nil {
			return nil, err
		}
		return o.DeletionTimestamp, nil
	})
}
