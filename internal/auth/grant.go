package auth

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"

	"github.com/unforked/kcp/internal/cluster"
)

// A Grant is what the members of a group may do in one cluster, for the time of one
// request and instead of what RBAC there says of them. The server alone makes one.
type Grant struct {
	Cluster cluster.Name
	Group   string
	Rules   []rbacv1.PolicyRule
}

// String says where rules come from that are a grant's.
func (g *Grant) String() string { return fmt.Sprintf("what is granted to the group %q", g.Group) }

// Allows reports whether the grant covers what a asks for.
func (g *Grant) Allows(a authorizer.Attributes) bool { return rbac.RulesAllow(a, g.Rules...) }

type grantKey struct{}

// WithGrant returns a context for a request to which g applies.
func WithGrant(ctx context.Context, g *Grant) context.Context {
	return context.WithValue(ctx, grantKey{}, g)
}

// grantFor returns the grant that decides what u may do in the cluster of a request,
// nil for none. Elsewhere u is a user like any other.
func grantFor(ctx context.Context, u user.Info) *Grant {
	g, _ := ctx.Value(grantKey{}).(*Grant)
	if g == nil || !inGroup(u, g.Group) {
		return nil
	}
	if c, _ := cluster.From(ctx); c != g.Cluster {
		return nil
	}
	return g
}

// byGrant is the verdict on a where a grant decides; ok is false where none does.
func byGrant(ctx context.Context, a authorizer.Attributes) (v verdict, ok bool) {
	g := grantFor(ctx, a.GetUser())
	switch {
	case g == nil:
		return verdict{}, false
	case g.Allows(a):
		return verdict{decision: authorizer.DecisionAllow, reason: g.String()}, true
	default:
		return verdict{decision: authorizer.DecisionDeny, reason: "not in " + g.String()}, true
	}
}

// grantedRules has the rules of a grant take the place of those that a user holds.
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

// SeenFrom returns u as it is known in cluster c, so that nobody there is taken for
// one who has his name elsewhere.
func SeenFrom(c cluster.Name, u user.Info) user.Info {
	if !inScope(u, c) {
		return outOfScope(u)
	}
	return seenFrom(c, u)
}

// isLifecycleGroup reports whether a group is one that the server alone puts a user
// in, while he prepares a cluster or clears up in it.
func isLifecycleGroup(g string) bool {
	return strings.HasPrefix(g, InitializerGroupPrefix) || strings.HasPrefix(g, TerminatorGroupPrefix)
}

// withoutLifecycleGroups drops the groups that nobody comes with, whoever vouches for
// them.
func withoutLifecycleGroups(a authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		r, ok, err := a.AuthenticateRequest(req)
		if err != nil || !ok || !slices.ContainsFunc(r.User.GetGroups(), isLifecycleGroup) {
			return r, ok, err
		}
		u := &user.DefaultInfo{Name: r.User.GetName(), UID: r.User.GetUID(), Extra: r.User.GetExtra()}
		u.Groups = slices.DeleteFunc(slices.Clone(r.User.GetGroups()), isLifecycleGroup)
		return &authenticator.Response{User: u, Audiences: r.Audiences}, true, nil
	})
}

// Unprivileged returns u without what would let him do, in the cluster that he is put
// in, more than its roles and bindings say.
func Unprivileged(u user.Info) user.Info {
	beyond := func(g string) bool {
		return slices.Contains(membersOnly(), g) || g == WorkspaceAccessGroup || isLifecycleGroup(g)
	}
	extra := maps.Clone(u.GetExtra())
	delete(extra, WarrantKey)
	groups := append(slices.DeleteFunc(slices.Clone(u.GetGroups()), beyond), user.AllAuthenticated)
	return &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: groups, Extra: extra}
}

const (
	// InitializerGroupPrefix and the name of an initializer make the group that
	// whatever initializes a cluster is in. Only the server puts anybody in it.
	InitializerGroupPrefix = "system:kcp:initializer:"

	// TerminatorGroupPrefix is as [InitializerGroupPrefix], for terminators.
	TerminatorGroupPrefix = "system:kcp:terminator:"
)

// IsPrivileged reports whether a user may do anything anywhere.
func IsPrivileged(u user.Info) bool { return inGroup(u, user.SystemPrivilegedGroup) }
