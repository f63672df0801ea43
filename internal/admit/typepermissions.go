package admit

import (
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/rbac"
	rbacv1helpers "k8s.io/kubernetes/pkg/apis/rbac/v1"
	rbacvalidation "k8s.io/kubernetes/pkg/apis/rbac/validation"

	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
)

// validatePermissions refuses permissions for an initializer or terminator that the type does not have, and rules that
// a ClusterRole could not have. A type that had some keeps them: they hold for the workspaces that still wait for an
// initializer after the type has dropped it.
func validatePermissions(r Request, spec tenancyapi.WorkspaceTypeSpec) error {
	old := typeIn(r.GetOldObject()).Spec
	var errs field.ErrorList
	for _, of := range []struct {
		role        string
		has         bool
		before, now []rbacv1.PolicyRule
	}{
		{"initializer", spec.Initializer, old.InitializerPermissions, spec.InitializerPermissions},
		{"terminator", spec.Terminator, old.TerminatorPermissions, spec.TerminatorPermissions},
	} {
		at := field.NewPath("spec", of.role+"Permissions")
		if !of.has && len(of.now) > 0 && len(of.before) == 0 {
			errs = append(errs, field.Forbidden(at, fmt.Sprintf("the type has no %s: set spec.%s to true, or remove the permissions", of.role, of.role)))
		}
		for i, rule := range of.now {
			if slices.ContainsFunc(of.before, func(had rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(had, rule) }) {
				continue
			}
			var internal rbac.PolicyRule
			if err := rbacv1helpers.Convert_v1_PolicyRule_To_rbac_PolicyRule(&rule, &internal, nil); err != nil {
				return err
			}
			errs = append(errs, rbacvalidation.ValidatePolicyRule(internal, false, at.Index(i))...)
		}
	}
	return r.invalid(errs...)
}
