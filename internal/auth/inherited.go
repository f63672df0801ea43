package auth

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

	"github.com/unforked/kcp/internal/cluster"
)

// maxDepth bounds how many clusters are above one, far beyond what a path can lead
// through. It is there for trees that are not whole.
const maxDepth = 8 << 10

// parent returns the cluster above c.
func (o *Authorization) parent(c cluster.Name) (cluster.Name, bool) {
	if o.Cluster == nil {
		return "", false
	}
	info, ok := o.Cluster(c)
	return info.Parent, ok && info.Parent != ""
}

// above returns the clusters above c, the nearest first.
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

// descendingLayer has those bindings of the cluster of the context that hold below
// it. Their roles are those that the same bindings mean in that cluster.
type descendingLayer struct{ localLayer }

func (l descendingLayer) ListClusterRoleBindings(ctx context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	c, err := cluster.One(ctx)
	if err != nil {
		return nil, err
	}
	return l.stored.Descending(c), nil
}

// inherited visits the rules that u holds in cluster c because of bindings above it.
// Whoever holds any may enter.
func (r rules) inherited(ctx context.Context, c cluster.Name, u user.Info, visit visitor) {
	more := true
	for at := range above(c, r.parent) {
		if len(r.local.stored.Descending(at)) == 0 {
			continue
		}
		held := false
		r.descending(cluster.With(ctx, at), seenAt(at, c, u), func(source fmt.Stringer, rule *rbacv1.PolicyRule, err error) bool {
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

// descending visits the rules that bindings in the cluster of the context give u in
// the clusters below.
func (r rules) descending(ctx context.Context, u user.Info, visit visitor) {
	l := descendingLayer{r.local}
	validation.NewDefaultRuleResolver(l, l, l, l).VisitRulesFor(ctx, u, "", visit)
}

// inheritedFrom names a binding of another cluster.
type inheritedFrom struct {
	fmt.Stringer
	at cluster.Name
}

func (i inheritedFrom) String() string {
	return fmt.Sprintf("%v in logical cluster %s", i.Stringer, i.at)
}

// ClusterRole returns the role that bindings in the cluster of the context mean by name.
// One that is made of others has the rules that these have by now.
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
		return r, ok // nothing is ever added to it
	}
	made := *r
	made.Rules = slices.Concat(r.Rules, about)
	return &made, true
}

// Inherited returns the bindings that hold in cluster c because of clusters above it,
// by the cluster that they are in, the nearest first.
func (z *Authorizer) Inherited(c cluster.Name) iter.Seq2[cluster.Name, []*rbacv1.ClusterRoleBinding] {
	return func(yield func(cluster.Name, []*rbacv1.ClusterRoleBinding) bool) {
		for at := range above(c, z.rules.parent) {
			if b := z.options.RBAC.Descending(at); len(b) > 0 && !yield(at, b) {
				return
			}
		}
	}
}

// ConfirmDescending reports why u may not give others rules in all clusters below
// that of the context. He may if he can do anything in that cluster, or if he holds
// the rules, and may enter, in all clusters below already.
func (z *Authorizer) ConfirmDescending(ctx context.Context, u user.Info, wanted []rbacv1.PolicyRule) error {
	c, err := cluster.One(ctx)
	if err != nil {
		return err
	}
	err = z.confirmDescending(ctx, c, u, wanted)
	if err != nil && z.options.Fresh.caughtUp(ctx) {
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
	effective(c, u, func(e user.Info) bool {
		for _, l := range z.rules.everywhere() {
			l.wide.VisitRulesFor(ctx, l.as(c, e), "", h.visit)
		}
		z.rules.inherited(ctx, c, e, h.visit)
		before := len(h.rules)
		if z.rules.descending(ctx, seenFrom(c, e), h.visit); len(h.rules) > before {
			h.rules = append(h.rules, z.rules.access)
		}
		return true
	})
	wanted = append([]rbacv1.PolicyRule{z.rules.access}, wanted...)
	if covered, _ := rbacvalidation.Covers(h.rules, wanted); !covered {
		return errors.New("it would give others rights in all workspaces below; whoever may do anything in this workspace can do that, and who holds these rights in all of them")
	}
	return nil
}
