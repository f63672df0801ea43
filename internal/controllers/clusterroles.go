package controllers

import (
	"context"
	"errors"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applyrbacv1 "k8s.io/client-go/applyconfigurations/rbac/v1"
	typedrbacv1 "k8s.io/client-go/kubernetes/typed/rbac/v1"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/store"
)

// aggregator is the field manager of the rules of roles that are made of others.
const aggregator = "clusterrole-aggregation-controller"

// ClusterRoleAggregation gives cluster roles with an aggregation rule the rules of
// the roles that it selects: of those in their own cluster, and of the bootstrap
// policy. Roles of that policy are not stored, and aggregated where they are read.
func ClusterRoleAggregation(d Deps) control.Loop {
	return control.Loop{
		Name: "cluster-role-aggregation",
		On: []control.Source{{
			Ready: d.Store.Spine().Ready(),
			Subscribe: func(wake func(control.Key)) (unsubscribe func()) {
				unsubscribe = d.ClusterRoles.Subscribe(func(k store.Key) { wake(control.Key{Cluster: k.Cluster}) })
				for _, k := range d.ClusterRoles.Keys() {
					wake(control.Key{Cluster: k.Cluster})
				}
				return unsubscribe
			},
		}},
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

// aggregate brings the rules of one role up to date.
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
	// With its UID, or one that was deleted just now would be made again.
	apply := applyrbacv1.ClusterRole(role.Name).WithUID(role.UID)
	for _, r := range rules {
		apply.WithRules(&applyrbacv1.PolicyRuleApplyConfiguration{
			Verbs: r.Verbs, APIGroups: r.APIGroups, Resources: r.Resources, ResourceNames: r.ResourceNames, NonResourceURLs: r.NonResourceURLs,
		})
	}
	_, err = clients.ClusterRoles().Apply(ctx, apply, metav1.ApplyOptions{FieldManager: aggregator, Force: true})
	return ignore(err, apierrors.IsConflict) // whatever changed it wakes the loop
}
