package authz

import (
	"context"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/lru"

	"github.com/unforked/kcp/internal/cluster"
)

// RBAC reads the stored roles and bindings of all clusters. Every request calls it several
// times, so it must answer from memory. Callers do not modify the returned objects.
type RBAC interface {
	Role(c cluster.Name, namespace, name string) (*rbacv1.Role, bool)
	ClusterRole(c cluster.Name, name string) (*rbacv1.ClusterRole, bool)
	// ClusterRoles returns all ClusterRoles of a cluster, including their labels.
	ClusterRoles(c cluster.Name) []*rbacv1.ClusterRole
	RoleBindings(c cluster.Name, namespace string) []*rbacv1.RoleBinding
	ClusterRoleBindings(c cluster.Name) []*rbacv1.ClusterRoleBinding
	// Descending returns the ClusterRoleBindings of a cluster that also apply in all
	// clusters below it.
	Descending(c cluster.Name) []*rbacv1.ClusterRoleBinding
}

// noRBAC is an RBAC without objects.
type noRBAC struct{}

func (noRBAC) Role(cluster.Name, string, string) (*rbacv1.Role, bool)        { return nil, false }
func (noRBAC) ClusterRole(cluster.Name, string) (*rbacv1.ClusterRole, bool)  { return nil, false }
func (noRBAC) ClusterRoles(cluster.Name) []*rbacv1.ClusterRole               { return nil }
func (noRBAC) RoleBindings(cluster.Name, string) []*rbacv1.RoleBinding       { return nil }
func (noRBAC) ClusterRoleBindings(cluster.Name) []*rbacv1.ClusterRoleBinding { return nil }
func (noRBAC) Descending(cluster.Name) []*rbacv1.ClusterRoleBinding          { return nil }

// policy is the RBAC that applies in a cluster. It has three layers: bootstrap,
// system:admin, and the cluster's own. A binding finds its role in its own layer or in one
// above, never below. Otherwise a tenant could grant rights to everyone by creating a role
// with a name that a binding above refers to.
type policy struct {
	bootstrap *Bootstrap
	stored    RBAC
	// made caches the last extension by cluster and role. Every request needs it, and a
	// tenant decides how many rules it has.
	made *lru.Cache
}

// maxMade limits the cached extensions.
const maxMade = 256

func newPolicy(b *Bootstrap, stored RBAC) policy { return policy{b, stored, lru.New(maxMade)} }

type extensionKey struct {
	cluster cluster.Name
	role    string
}

// An extension is a role with the rules that other roles add to it.
type extension struct {
	of    *rbacv1.ClusterRole
	parts []*rbacv1.ClusterRole // never modified, so equal parts have an equal result
	role  *rbacv1.ClusterRole
}

// shared returns a role that is the same in every cluster. An object in system:admin
// replaces the bootstrap role of its name. Aggregated bootstrap roles also select roles of
// system:admin: operators change the default policy that way.
func (p policy) shared(name string) (*rbacv1.ClusterRole, bool) {
	if r, ok := p.stored.ClusterRole(cluster.Admin, name); ok {
		return r, true
	}
	r, ok := p.bootstrap.ClusterRole(name)
	return p.extended(cluster.Admin, r), ok
}

// extended returns a shared role with the rules that aggregated roles of cluster c add to
// it. r may be nil.
func (p policy) extended(c cluster.Name, r *rbacv1.ClusterRole) *rbacv1.ClusterRole {
	if r == nil || r.AggregationRule == nil {
		return r
	}
	parts := p.bootstrap.parts(c, p.stored.ClusterRoles(c))
	if len(parts) == 0 {
		return r
	}
	key := extensionKey{c, r.Name}
	if made, ok := p.made.Get(key); ok {
		if e := made.(extension); e.of == r && slices.Equal(e.parts, parts) {
			return e.role
		}
	}
	role := p.bootstrap.extend(r, parts)
	p.made.Add(key, extension{r, parts, role})
	return role
}

// clusterRole returns the role that bindings in cluster c refer to by name. A role of the
// cluster with the name of a bootstrap role has no effect, so it cannot widen existing
// bindings. For all other names the tenant's role takes precedence, so that additions to
// system:admin do not change its meaning. A tenant's role can add rules to aggregated roles
// by its labels; bindings in the layers above do not see these rules.
func (p policy) clusterRole(c cluster.Name, name string) (*rbacv1.ClusterRole, bool) {
	if _, taken := p.bootstrap.ClusterRole(name); !taken {
		if r, ok := p.stored.ClusterRole(c, name); ok {
			return r, true
		}
	}
	r, ok := p.shared(name)
	return p.extended(c, r), ok
}

// bootstrapLayer has the bootstrap bindings, except those that an object in system:admin
// replaces.
type bootstrapLayer struct{ policy }

func (l bootstrapLayer) ListClusterRoleBindings(context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	replaced := l.stored.ClusterRoleBindings(cluster.Admin)
	if len(replaced) == 0 {
		return l.bootstrap.bindings, nil
	}
	names := make(map[string]bool, len(replaced))
	for _, b := range replaced {
		names[b.Name] = true
	}
	left := make([]*rbacv1.ClusterRoleBinding, 0, len(l.bootstrap.bindings))
	for _, b := range l.bootstrap.bindings {
		if !names[b.Name] {
			left = append(left, b)
		}
	}
	return left, nil
}

func (l bootstrapLayer) GetClusterRole(_ context.Context, name string) (*rbacv1.ClusterRole, error) {
	return foundClusterRole(name)(l.shared(name))
}

func (bootstrapLayer) ListRoleBindings(context.Context, string) ([]*rbacv1.RoleBinding, error) {
	return nil, nil
}

func (bootstrapLayer) GetRole(_ context.Context, _, name string) (*rbacv1.Role, error) {
	return foundRole(name)(nil, false)
}

// adminLayer has the objects stored in system:admin. It applies in all clusters.
type adminLayer struct{ policy }

func (l adminLayer) ListClusterRoleBindings(context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	return l.stored.ClusterRoleBindings(cluster.Admin), nil
}

func (l adminLayer) GetClusterRole(_ context.Context, name string) (*rbacv1.ClusterRole, error) {
	return foundClusterRole(name)(l.shared(name))
}

func (l adminLayer) ListRoleBindings(_ context.Context, namespace string) ([]*rbacv1.RoleBinding, error) {
	return l.stored.RoleBindings(cluster.Admin, namespace), nil
}

func (l adminLayer) GetRole(_ context.Context, namespace, name string) (*rbacv1.Role, error) {
	return foundRole(name)(l.stored.Role(cluster.Admin, namespace, name))
}

// localLayer has the objects stored in the cluster of the context.
type localLayer struct{ policy }

func (l localLayer) ListClusterRoleBindings(ctx context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	c, err := cluster.One(ctx)
	if err != nil {
		return nil, err
	}
	return l.stored.ClusterRoleBindings(c), nil
}

func (l localLayer) GetClusterRole(ctx context.Context, name string) (*rbacv1.ClusterRole, error) {
	c, err := cluster.One(ctx)
	if err != nil {
		return nil, err
	}
	return foundClusterRole(name)(l.clusterRole(c, name))
}

func (l localLayer) ListRoleBindings(ctx context.Context, namespace string) ([]*rbacv1.RoleBinding, error) {
	c, err := cluster.One(ctx)
	if err != nil {
		return nil, err
	}
	return l.stored.RoleBindings(c, namespace), nil
}

func (l localLayer) GetRole(ctx context.Context, namespace, name string) (*rbacv1.Role, error) {
	c, err := cluster.One(ctx)
	if err != nil {
		return nil, err
	}
	return foundRole(name)(l.stored.Role(c, namespace, name))
}

func foundClusterRole(name string) func(*rbacv1.ClusterRole, bool) (*rbacv1.ClusterRole, error) {
	return func(r *rbacv1.ClusterRole, ok bool) (*rbacv1.ClusterRole, error) {
		if !ok {
			return nil, apierrors.NewNotFound(rbacv1.Resource("clusterroles"), name)
		}
		return r, nil
	}
}

func foundRole(name string) func(*rbacv1.Role, bool) (*rbacv1.Role, error) {
	return func(r *rbacv1.Role, ok bool) (*rbacv1.Role, error) {
		if !ok {
			return nil, apierrors.NewNotFound(rbacv1.Resource("roles"), name)
		}
		return r, nil
	}
}
