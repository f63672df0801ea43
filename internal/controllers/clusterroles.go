package controllers

import (
	"context"
	"errors"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	applyrbacv1 "k8s.io/client-go/applyconfigurations/rbac/v1"
	typedrbacv1 "k8s.io/client-go/kubernetes/typed/rbac/v1"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
)

// aggregator is the field manager of aggregated rules.
const aggregator = "clusterrole-aggregation-controller"

// ClusterRoleAggregation writes the rules of stored cluster roles with an aggregation rule.
// They are the rules of the selected roles, in the same cluster and in the bootstrap
// policy. Roles of that policy are not stored; they are aggregated when they are read.
func ClusterRoleAggregation(d Deps) control.Loop {
	return control.Loop{
		Name: "cluster-role-aggregation",
		On:   d.on(d.clusterRoles),
		Do: func(ctx context.Context, k control.Key) error {
			own := d.ClusterRoles.List(k.Cluster, "")
			var errs []error
			for _, role := range own {
				if role.AggregationRule != nil {
					errs = append(errs, d.aggregate(ctx, k.Cluster, role, own))
				}
			}
			return errors.Join(errs...)
		},
	}
}

// aggregate updates the rules of one role.
func (d Deps) aggregate(ctx context.Context, c cluster.Name, role *rbacv1.ClusterRole, own []*rbacv1.ClusterRole) error {
	rules, err := d.Policy.Aggregate(c, role, own)
	if err != nil {
		return fmt.Errorf("aggregate cluster role %s: %w", role.Name, err)
	}
	if equality.Semantic.DeepEqual(rules, role.Rules) {
		return nil
	}
	clients, err := typedrbacv1.NewForConfig(d.Client(c))
	if err != nil {
		return err
	}
	// Without the UID, apply would create a role that was just deleted.
	apply := applyrbacv1.ClusterRole(role.Name).WithUID(role.UID)
	for _, r := range rules {
		apply.WithRules(&applyrbacv1.PolicyRuleApplyConfiguration{
			Verbs: r.Verbs, APIGroups: r.APIGroups, Resources: r.Resources, ResourceNames: r.ResourceNames, NonResourceURLs: r.NonResourceURLs,
		})
	}
	_, err = clients.ClusterRoles().Apply(ctx, apply, metav1.ApplyOptions{FieldManager: aggregator, Force: true})
	return utilerrors.FilterOut(err, apierrors.IsConflict) // the concurrent change wakes the loop
}
