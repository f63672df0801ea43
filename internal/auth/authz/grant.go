package authz

import (
	"context"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

// A Grant gives the members of a group rights in one cluster for one request, in place of
// the RBAC there. Only the server creates grants.
type Grant struct {
	Cluster cluster.Name
	Group   string
	Rules   []rbacv1.PolicyRule
	// Unlimited is true if the provider of the resources makes the request: the limits of
	// providers for their consumers do not apply.
	Unlimited bool
}

// AccessRule is the rule that lets users enter a cluster. Without it they have no other right there.
func AccessRule() rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: []string{"access"}, NonResourceURLs: []string{"/"}}
}

// Holder returns user u as they are in the cluster of the grant, and in its group.
func (g *Grant) Holder(u user.Info) user.Info {
	seen := auth.SeenFrom(g.Cluster, u)
	return &user.DefaultInfo{Name: seen.GetName(), UID: seen.GetUID(), Extra: seen.GetExtra(), Groups: append(slices.Clone(seen.GetGroups()), g.Group)}
}

// String describes the grant as the source of a rule.
func (g *Grant) String() string { return fmt.Sprintf("the grant to the group %q", g.Group) }

// Allows reports whether the grant allows a.
func (g *Grant) Allows(a authorizer.Attributes) bool { return rbac.RulesAllow(a, g.Rules...) }

type grantKey struct{}

// WithGrant returns a context for a request to which g applies.
func WithGrant(ctx context.Context, g *Grant) context.Context {
	return context.WithValue(ctx, grantKey{}, g)
}

// grantFor returns the grant that applies to u in the cluster of the context, or nil. The
// grant has no effect in other clusters.
func grantFor(ctx context.Context, u user.Info) *Grant {
	g, _ := ctx.Value(grantKey{}).(*Grant)
	if g == nil || !auth.InGroup(u, g.Group) {
		return nil
	}
	if c, _ := cluster.From(ctx); c != g.Cluster {
		return nil
	}
	return g
}

// verdict returns the verdict on a, in place of RBAC's.
func (g *Grant) verdict(a authorizer.Attributes) verdict {
	if g.Allows(a) {
		return verdict{decision: authorizer.DecisionAllow, reason: g.String()}
	}
	return verdict{decision: authorizer.DecisionDeny, reason: "not in " + g.String()}
}

// grantedRules resolves the rules of a grant, if one applies, in place of RBAC's.
type grantedRules struct {
	validation.AuthorizationRuleResolver
}

func (r grantedRules) RulesFor(ctx context.Context, u user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	if g := grantFor(ctx, u); g != nil {
		return g.Rules, nil
	}
	return r.AuthorizationRuleResolver.RulesFor(ctx, u, namespace)
}

func (r grantedRules) VisitRulesFor(ctx context.Context, u user.Info, namespace string, visit func(fmt.Stringer, *rbacv1.PolicyRule, error) bool) {
	g := grantFor(ctx, u)
	if g == nil {
		r.AuthorizationRuleResolver.VisitRulesFor(ctx, u, namespace, visit)
		return
	}
	for i := range g.Rules {
		if !visit(g, &g.Rules[i], nil) {
			return
		}
	}
}
