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

// A Grant gives the members of a group rights in one cluster for one request, in place of
// the RBAC there. Only the server creates grants.
type Grant struct {
	Cluster cluster.Name
	Group   string
	Rules   []rbacv1.PolicyRule
	// Unlimited tells that the provider of the resources makes the request: the limits of
	// providers for their consumers do not apply.
	Unlimited bool
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
	if g == nil || !inGroup(u, g.Group) {
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

// SeenFrom returns the identity of u in cluster c. It never matches another user of c with
// the same name. A user who is out of scope in c is anonymous.
func SeenFrom(c cluster.Name, u user.Info) user.Info {
	if !inScope(u, c) {
		return outOfScope(u)
	}
	return seenFrom(c, u)
}

// Within returns u with rights in cluster c alone: checks in any other cluster treat the
// user as out of scope. A user who is out of scope in c stays out of scope.
func Within(c cluster.Name, u user.Info) user.Info {
	if !inScope(u, c) {
		u = outOfScope(u)
	}
	extra := maps.Clone(u.GetExtra())
	if extra == nil {
		extra = map[string][]string{}
	}
	extra[ScopesKey] = append(slices.Clone(extra[ScopesKey]), ScopePrefix+string(c))
	return &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra}
}

// isViewGroup reports whether g is a group of users of views. Only the server adds users to
// these groups.
func isViewGroup(g string) bool {
	return strings.HasPrefix(g, InitializerGroupPrefix) || strings.HasPrefix(g, TerminatorGroupPrefix) || strings.HasPrefix(g, ProviderGroupPrefix)
}

// withoutViewGroups removes the groups of views from the users that a authenticates. No
// credentials may carry them.
func withoutViewGroups(a authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		r, ok, err := a.AuthenticateRequest(req)
		if err != nil || !ok || !slices.ContainsFunc(r.User.GetGroups(), isViewGroup) {
			return r, ok, err
		}
		u := &user.DefaultInfo{Name: r.User.GetName(), UID: r.User.GetUID(), Extra: r.User.GetExtra()}
		u.Groups = slices.DeleteFunc(slices.Clone(r.User.GetGroups()), isViewGroup)
		return &authenticator.Response{User: u, Audiences: r.Audiences}, true, nil
	})
}

// Unprivileged returns u without the groups and warrants that give it more rights than RBAC
// of a cluster does.
func Unprivileged(u user.Info) user.Info {
	beyond := func(g string) bool {
		return slices.Contains(membersOnly(), g) || g == WorkspaceAccessGroup || isViewGroup(g)
	}
	extra := maps.Clone(u.GetExtra())
	delete(extra, WarrantKey)
	groups := append(slices.DeleteFunc(slices.Clone(u.GetGroups()), beyond), user.AllAuthenticated)
	return &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: groups, Extra: extra}
}

const (
	// InitializerGroupPrefix begins the group of clients that initialize a cluster. The
	// name of the initializer follows. Only the server adds users to this group.
	InitializerGroupPrefix = "system:kcp:initializer:"

	// TerminatorGroupPrefix is as [InitializerGroupPrefix], for terminators.
	TerminatorGroupPrefix = "system:kcp:terminator:"

	// ProviderGroupPrefix is as [InitializerGroupPrefix], for providers of exports in the
	// clusters that bind the export.
	ProviderGroupPrefix = "system:kcp:provider:"
)

// IsPrivileged reports whether a user is in system:masters, which may do anything anywhere.
func IsPrivileged(u user.Info) bool { return inGroup(u, user.SystemPrivilegedGroup) }
