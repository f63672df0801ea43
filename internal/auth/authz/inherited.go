package authz

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	rbacvalidation "k8s.io/component-helpers/auth/rbac/validation"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

// maxDepth limits the number of ancestors of a cluster. No path is that deep; the limit
// stops the walk through a broken tree.
const maxDepth = 8 << 10

// parent returns the parent of cluster c, and whether it has one.
func (o *Authorization) parent(c cluster.Name) (cluster.Name, bool) {
	if o.Cluster == nil {
		return "", false
	}
	info, ok := o.Cluster(c)
	return info.Parent, ok && info.Parent != ""
}

// above returns the ancestors of cluster c, the nearest first.
func above(c cluster.Name, parent func(cluster.Name) (cluster.Name, bool)) iter.Seq[cluster.Name] {
	return func(yield func(cluster.Name) bool) {
		for range maxDepth {
			at, ok := parent(c)
			if !ok || !yield(at) {
				return
			}
			c = at
		}
	}
}

// descendingLayer has the bindings of the cluster of the context that also apply below it.
// Their roles are resolved in that cluster.
type descendingLayer struct{ localLayer }

func (l descendingLayer) ListClusterRoleBindings(ctx context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	c, err := cluster.One(ctx)
	if err != nil {
		return nil, err
	}
	return l.stored.Descending(c), nil
}

// inherited visits the rules that bindings in ancestors of cluster c give u. Any such rule
// also allows u to enter c.
func (r rules) inherited(ctx context.Context, c cluster.Name, u user.Info, visit visitor) {
	more := true
	for at := range above(c, r.parent) {
		if len(r.local.stored.Descending(at)) == 0 {
			continue
		}
		held := false
		r.descending(cluster.With(ctx, at), auth.SeenAt(at, c, u), func(source fmt.Stringer, rule *rbacv1.PolicyRule, err error) bool {
			from := inheritedFrom{source, at}
			if rule != nil && !held {
				held = true
				more = visit(from, &r.access, nil)
			}
			more = more && visit(from, rule, err)
			return more
		})
		if !more {
			return
		}
	}
}

// descending visits the rules that descending bindings in the cluster of the context give
// u.
func (r rules) descending(ctx context.Context, u user.Info, visit visitor) {
	l := descendingLayer{r.local}
	validation.NewDefaultRuleResolver(l, l, l, l).VisitRulesFor(ctx, u, "", visit)
}

// inheritedFrom describes a binding of another cluster as the source of a rule.
type inheritedFrom struct {
	fmt.Stringer
	at cluster.Name
}

func (i inheritedFrom) String() string {
	return fmt.Sprintf("%v in logical cluster %s", i.Stringer, i.at)
}

// ClusterRole returns the role that bindings in the cluster of the context refer to by
// name. An aggregated role has the current rules of the roles that it selects.
func (z *Authorizer) ClusterRole(ctx context.Context, name string) (*rbacv1.ClusterRole, bool) {
	c, err := cluster.One(ctx)
	if err != nil {
		return nil, false
	}
	r, ok := z.rules.local.clusterRole(c, name)
	if _, stored := z.options.RBAC.ClusterRole(c, name); !ok || !stored || r.AggregationRule == nil {
		return r, ok
	}
	about, err := z.bootstrap.Aggregate(c, r, z.options.RBAC.ClusterRoles(c))
	if err != nil {
		return r, ok // an invalid selector adds nothing
	}
	made := *r
	made.Rules = slices.Concat(r.Rules, about)
	return &made, true
}

// Inherited returns the bindings of the ancestors of cluster c that apply in c, by
// ancestor, the nearest first.
func (z *Authorizer) Inherited(c cluster.Name) iter.Seq2[cluster.Name, []*rbacv1.ClusterRoleBinding] {
	return func(yield func(cluster.Name, []*rbacv1.ClusterRoleBinding) bool) {
		for at := range above(c, z.rules.parent) {
			if b := z.options.RBAC.Descending(at); len(b) > 0 && !yield(at, b) {
				return
			}
		}
	}
}

// ConfirmDescending returns an error if u may not grant rules in all clusters below that of
// the context. Users may do so if they can do anything in that cluster, or if they hold the
// rules, and may enter, in all clusters below. Rights limited to the cluster do not count:
// those of scoped users, which includes impersonated ones, and those of a [Grant].
func (z *Authorizer) ConfirmDescending(ctx context.Context, u user.Info, wanted []rbacv1.PolicyRule) error {
	c, err := cluster.One(ctx)
	if err != nil {
		return err
	}
	u = auth.Unbounded(u)
	ctx = WithGrant(ctx, nil)
	err = z.confirmDescending(ctx, c, u, wanted)
	if err != nil && z.options.Fresh.CaughtUp(ctx) {
		err = z.confirmDescending(ctx, c, u, wanted)
	}
	return err
}

func (z *Authorizer) confirmDescending(ctx context.Context, c cluster.Name, u user.Info, wanted []rbacv1.PolicyRule) error {
	may := func(a authorizer.AttributesRecord) bool {
		a.User = u
		return z.verdict(ctx, a).decision == authorizer.DecisionAllow
	}
	all := rbacv1.ResourceAll
	if may(authorizer.AttributesRecord{Verb: all, APIGroup: all, Resource: all, ResourceRequest: true}) && may(authorizer.AttributesRecord{Verb: all, Path: all}) {
		return nil
	}
	var h held
	auth.Effective(c, u, func(e user.Info) bool {
		for _, l := range z.rules.everywhere() {
			l.wide.VisitRulesFor(ctx, l.as(c, e), "", h.visit)
		}
		z.rules.inherited(ctx, c, e, h.visit)
		before := len(h.rules)
		if z.rules.descending(ctx, auth.AccountIn(c, e), h.visit); len(h.rules) > before {
			h.rules = append(h.rules, z.rules.access)
		}
		return true
	})
	wanted = append([]rbacv1.PolicyRule{z.rules.access}, wanted...)
	if covered, _ := rbacvalidation.Covers(h.rules, wanted); !covered {
		return errors.New("it grants rights in all workspaces below; that requires all rights in this workspace, or these rights in all workspaces below")
	}
	return nil
}
