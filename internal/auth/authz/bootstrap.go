package authz

import (
	"fmt"
	"maps"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rbacv1helpers "k8s.io/kubernetes/pkg/apis/rbac/v1"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/unforked/kcp/internal/auth"
)

// Names of the roles added to those of Kubernetes.
const (
	// WorkspaceAccessRole allows entering a workspace: the verb "access" on "/".
	WorkspaceAccessRole = "system:kcp:workspace:access"

	// TenancyReaderRole allows reading workspaces, their types and logical clusters.
	TenancyReaderRole = "system:kcp:tenancy:reader"

	// MetricsReaderRole allows reading /metrics.
	MetricsReaderRole = "system:kcp:metrics-reader"
)

// A Bootstrap is the RBAC policy that applies in every cluster without being stored. All
// clusters share it, so callers must not modify the objects that it returns.
type Bootstrap struct {
	roles    map[string]*rbacv1.ClusterRole
	ordered  []*rbacv1.ClusterRole // all roles, by name
	bindings []*rbacv1.ClusterRoleBinding
}

// NewBootstrap returns the default policy of Kubernetes, aggregated, and that of
// workspaces. It omits the bindings of service accounts in kube-system. That namespace
// belongs to the tenant here, so a user who creates service accounts in it would get these
// rights.
func NewBootstrap() (*Bootstrap, error) {
	b := &Bootstrap{roles: map[string]*rbacv1.ClusterRole{}}
	for _, r := range append(bootstrappolicy.ClusterRoles(), workspaceRoles()...) {
		b.roles[r.Name] = &r
	}
	b.ordered = slices.SortedFunc(maps.Values(b.roles), byName)
	for _, r := range b.ordered {
		if err := b.fill(r); err != nil {
			return nil, fmt.Errorf("aggregate bootstrap role %s: %w", r.Name, err)
		}
	}
	for _, binding := range append(bootstrappolicy.ClusterRoleBindings(), workspaceBindings()...) {
		binding.Subjects = slices.DeleteFunc(binding.Subjects, func(s rbacv1.Subject) bool {
			return s.Kind == rbacv1.ServiceAccountKind
		})
		if len(binding.Subjects) > 0 {
			b.bindings = append(b.bindings, &binding)
		}
	}
	return b, nil
}

// ClusterRole returns a role of the policy, and whether it exists.
func (b *Bootstrap) ClusterRole(name string) (*rbacv1.ClusterRole, bool) {
	r, ok := b.roles[name]
	return r, ok
}

// ClusterRoles returns all roles of the policy, sorted by name.
func (b *Bootstrap) ClusterRoles() []*rbacv1.ClusterRole { return slices.Clone(b.ordered) }

// ClusterRoleBindings returns all bindings of the policy.
func (b *Bootstrap) ClusterRoleBindings() []*rbacv1.ClusterRoleBinding { return b.bindings }

func workspaceRoles() []rbacv1.ClusterRole {
	access := rbacv1helpers.NewRule("access").URLs("/").RuleOrDie()
	role := func(name string, rules ...rbacv1.PolicyRule) rbacv1.ClusterRole {
		return rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	}
	return []rbacv1.ClusterRole{
		role(WorkspaceAccessRole, access),
		role(TenancyReaderRole,
			rbacv1helpers.NewRule("get", "list", "watch").Groups("tenancy.kcp.io").Resources("workspaces", "workspacetypes").RuleOrDie(),
			rbacv1helpers.NewRule("get", "list", "watch").Groups("core.kcp.io").Resources("logicalclusters").RuleOrDie()),
		role(MetricsReaderRole, rbacv1helpers.NewRule("get").URLs("/metrics").RuleOrDie()),
		role(auth.LogicalClusterAdminGroup, access,
			rbacv1helpers.NewRule("*").Groups("core.kcp.io").Resources("logicalclusters", "logicalclusters/status").RuleOrDie(),
			rbacv1helpers.NewRule("*").Groups("tenancy.kcp.io").Resources("workspaces", "workspaces/status").RuleOrDie()),
		role(auth.ExternalLogicalClusterAdminGroup, access,
			rbacv1helpers.NewRule("get", "list", "watch", "create", "delete").Groups("core.kcp.io").Resources("logicalclusters").RuleOrDie()),
	}
}

func workspaceBindings() []rbacv1.ClusterRoleBinding {
	bind := func(name, role, group string) rbacv1.ClusterRoleBinding {
		b := rbacv1helpers.NewClusterBinding(role).Groups(group).BindingOrDie()
		b.Name = name
		return b
	}
	return []rbacv1.ClusterRoleBinding{
		bind("system:kcp:admin:cluster-admin", "cluster-admin", auth.AdminGroup),
		bind("system:kcp:tenancy:workspace-bootstrapper:cluster-admin", "cluster-admin", auth.WorkspaceBootstrapperGroup),
		bind(WorkspaceAccessRole, WorkspaceAccessRole, auth.WorkspaceAccessGroup),
		bind(auth.LogicalClusterAdminGroup, auth.LogicalClusterAdminGroup, auth.LogicalClusterAdminGroup),
		bind(auth.ExternalLogicalClusterAdminGroup, auth.ExternalLogicalClusterAdminGroup, auth.ExternalLogicalClusterAdminGroup),
	}
}
