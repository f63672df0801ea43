package admit

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/apis/rbac"
	rbacv1helpers "k8s.io/kubernetes/pkg/apis/rbac/v1"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

var (
	clusterRoles        = schema.GroupResource{Group: rbac.GroupName, Resource: "clusterroles"}
	clusterRoleBindings = schema.GroupResource{Group: rbac.GroupName, Resource: "clusterrolebindings"}
)

// Descendants looks up bindings that also apply below their cluster.
type Descendants struct {
	// Of returns these bindings of a cluster, as new as any data that the process has seen.
	Of func(ctx context.Context, c cluster.Name) []*rbacv1.ClusterRoleBinding
	// Role returns the role that a name refers to in the cluster of the context.
	Role func(ctx context.Context, name string) (role *rbacv1.ClusterRole, known bool)
	// Depend makes the write of the context conflict with concurrent writes that call
	// Depend too; the request is then decided again. Data read after Depend is as new as
	// etcd.
	Depend func(ctx context.Context) error
	// Confirm returns an error if a user may not grant rules in all clusters below that of
	// the context.
	Confirm func(ctx context.Context, u user.Info, rules []rbacv1.PolicyRule) error
}

// Rule refuses to grant rights in the clusters below to users who lack these rights there.
// Rights in this cluster, which suffice for an ordinary binding, do not suffice.
//
// A binding grants the rules of its role, and a role grants rules to the subjects of its
// bindings. Of two concurrent writes of both, one must see the other, so they conflict.
func (d Descendants) Rule() Rule {
	return Rule{Name: "rbac.kcp.io/Descendants", Validate: func(ctx context.Context, r Request) (err error) {
		if op := r.GetOperation(); op != admission.Create && op != admission.Update || r.Privileged() && !auth.Scoped(r.GetUserInfo()) {
			return nil
		}
		switch o := r.GetObject().(type) {
		case *rbac.ClusterRoleBinding:
			err = d.binding(ctx, r, o)
		case *rbac.ClusterRole:
			err = d.role(ctx, r, o)
		}
		return err
	}}
}

func (d Descendants) confirm(ctx context.Context, r Request, granted []rbacv1.PolicyRule) error {
	if err := d.Confirm(ctx, r.GetUserInfo(), granted); err != nil {
		return r.Forbid(fmt.Errorf("%w (label %s)", err, core.DescendantsLabel))
	}
	return nil
}

// binding decides on a binding that grants something new below.
func (d Descendants) binding(ctx context.Context, r Request, b *rbac.ClusterRoleBinding) error {
	if !r.Is(clusterRoleBindings) || b.Labels[core.DescendantsLabel] != "true" {
		return nil
	}
	if old, ok := r.GetOldObject().(*rbac.ClusterRoleBinding); ok && old.Labels[core.DescendantsLabel] == "true" &&
		reflect.DeepEqual(old.Subjects, b.Subjects) && old.RoleRef == b.RoleRef {
		return nil
	}
	if err := d.Depend(ctx); err != nil {
		return err
	}
	role, known := d.Role(ctx, b.RoleRef.Name)
	if !known {
		return d.confirm(ctx, r, everything()) // the role may get any rules later
	}
	return d.confirm(ctx, r, role.Rules)
}

// role decides on a role that bindings may grant below. Users who may make such a binding
// may write the role whether or not a binding exists.
func (d Descendants) role(ctx context.Context, r Request, role *rbac.ClusterRole) error {
	if !r.Is(clusterRoles) {
		return nil
	}
	if old, ok := r.GetOldObject().(*rbac.ClusterRole); ok && reflect.DeepEqual(old.Rules, role.Rules) &&
		reflect.DeepEqual(old.Labels, role.Labels) && reflect.DeepEqual(old.AggregationRule, role.AggregationRule) {
		return nil
	}
	refused := d.confirm(ctx, r, rulesOf(role))
	if refused == nil {
		return nil
	}
	if err := d.Depend(ctx); err != nil {
		return err
	}
	if d.grantsBelow(ctx, r.Cluster, role) {
		return refused
	}
	return nil
}

// grantsBelow reports whether bindings that apply below cluster c refer to role, or to a
// role that aggregates it.
func (d Descendants) grantsBelow(ctx context.Context, c cluster.Name, role *rbac.ClusterRole) bool {
	for _, b := range d.Of(ctx, c) {
		if b.RoleRef.Name == role.Name {
			return true
		}
		if bound, known := d.Role(ctx, b.RoleRef.Name); known && bound.AggregationRule != nil && len(role.Labels) > 0 {
			return true
		}
	}
	return false
}

// rulesOf returns the rules of a role, or all rules if the role is aggregated.
func rulesOf(role *rbac.ClusterRole) []rbacv1.PolicyRule {
	if role.AggregationRule != nil {
		return everything()
	}
	rules := make([]rbacv1.PolicyRule, len(role.Rules))
	for i := range role.Rules {
		if err := rbacv1helpers.Convert_rbac_PolicyRule_To_v1_PolicyRule(&role.Rules[i], &rules[i], nil); err != nil {
			return everything()
		}
	}
	return rules
}

func everything() []rbacv1.PolicyRule {
	all := []string{"*"}
	return []rbacv1.PolicyRule{{Verbs: all, APIGroups: all, Resources: all}, {Verbs: all, NonResourceURLs: all}}
}

// RequiredGroups validates the groups that a cluster requires. A typing error would lock
// out every user.
func RequiredGroups(check func(string) error) Rule {
	return Rule{Name: "authorization.kcp.io/RequiredGroups", Validate: func(_ context.Context, r Request) error {
		if !r.Is(logicalClusters) && !r.Is(workspaces) {
			return nil
		}
		now, old := r.Object(), r.Old()
		if now == nil {
			return nil
		}
		groups, given := now.GetAnnotations()[core.RequiredGroupsAnnotation]
		if !given || old != nil && old.GetAnnotations()[core.RequiredGroupsAnnotation] == groups {
			return nil
		}
		if groups == "" {
			return r.Forbid(errors.New("annotation " + core.RequiredGroupsAnnotation + " is empty; leave it out to require no groups"))
		}
		if err := check(groups); err != nil {
			return r.Forbid(fmt.Errorf("annotation %s: %w", core.RequiredGroupsAnnotation, err))
		}
		return nil
	}}
}
