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
	"github.com/unforked/kcp/internal/cluster"
)

var (
	clusterRoles        = schema.GroupResource{Group: rbac.GroupName, Resource: "clusterroles"}
	clusterRoleBindings = schema.GroupResource{Group: rbac.GroupName, Resource: "clusterrolebindings"}
)

// Descendants tells what is known about bindings that hold below their cluster.
type Descendants struct {
	// Of returns those of a cluster, as new as anything the process has seen.
	Of func(ctx context.Context, c cluster.Name) []*rbacv1.ClusterRoleBinding
	// Role returns what a role name means in the cluster of the context.
	Role func(ctx context.Context, name string) (role *rbacv1.ClusterRole, known bool)
	// Confirm reports why a user may not give others rules in all clusters below that
	// of the context.
	Confirm func(ctx context.Context, u user.Info, rules []rbacv1.PolicyRule) error
}

// Rule keeps people from giving others, or themselves, rights in the clusters below
// that they do not have there. That they have them in this cluster, which is all that
// is asked of a binding that holds in it alone, is not enough.
func (d Descendants) Rule() Rule {
	return Rule{Name: "rbac.kcp.io/Descendants", Validate: func(ctx context.Context, r Request) error {
		if op := r.GetOperation(); op != admission.Create && op != admission.Update || r.Privileged() {
			return nil
		}
		var granted []rbacv1.PolicyRule
		var grants bool
		switch o := r.GetObject().(type) {
		case *rbac.ClusterRoleBinding:
			granted, grants = d.ofBinding(ctx, r, o)
		case *rbac.ClusterRole:
			granted, grants = d.ofRole(ctx, r, o)
		}
		if !grants {
			return nil
		}
		if err := d.Confirm(ctx, r.GetUserInfo(), granted); err != nil {
			return r.Forbid(fmt.Errorf("%w (label %s)", err, core.DescendantsLabel))
		}
		return nil
	}}
}

// ofBinding returns what a binding grants below, if it grants anything new.
func (d Descendants) ofBinding(ctx context.Context, r Request, b *rbac.ClusterRoleBinding) ([]rbacv1.PolicyRule, bool) {
	if !r.Is(clusterRoleBindings) || b.Labels[core.DescendantsLabel] != "true" {
		return nil, false
	}
	if old, ok := r.GetOldObject().(*rbac.ClusterRoleBinding); ok && old.Labels[core.DescendantsLabel] == "true" &&
		reflect.DeepEqual(old.Subjects, b.Subjects) && old.RoleRef == b.RoleRef {
		return nil, false
	}
	role, known := d.Role(ctx, b.RoleRef.Name)
	if !known {
		return everything(), true // for it may become that
	}
	return role.Rules, true
}

// ofRole returns what a role grants below, if bindings that hold there refer to it, or
// to roles that take in its rules.
func (d Descendants) ofRole(ctx context.Context, r Request, role *rbac.ClusterRole) ([]rbacv1.PolicyRule, bool) {
	if !r.Is(clusterRoles) {
		return nil, false
	}
	if old, ok := r.GetOldObject().(*rbac.ClusterRole); ok && reflect.DeepEqual(old.Rules, role.Rules) &&
		reflect.DeepEqual(old.Labels, role.Labels) && reflect.DeepEqual(old.AggregationRule, role.AggregationRule) {
		return nil, false
	}
	for _, b := range d.Of(ctx, r.Cluster) {
		if b.RoleRef.Name != role.Name {
			bound, known := d.Role(ctx, b.RoleRef.Name)
			if !known || bound.AggregationRule == nil || len(role.Labels) == 0 {
				continue
			}
		}
		if role.AggregationRule != nil {
			return everything(), true
		}
		rules := make([]rbacv1.PolicyRule, len(role.Rules))
		for i := range role.Rules {
			if err := rbacv1helpers.Convert_rbac_PolicyRule_To_v1_PolicyRule(&role.Rules[i], &rules[i], nil); err != nil {
				return everything(), true
			}
		}
		return rules, true
	}
	return nil, false
}

func everything() []rbacv1.PolicyRule {
	all := []string{"*"}
	return []rbacv1.PolicyRule{{Verbs: all, APIGroups: all, Resources: all}, {Verbs: all, NonResourceURLs: all}}
}

// RequiredGroups keeps the groups that a cluster requires in a form that somebody can
// be in: who mistypes them would lock everybody out.
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
