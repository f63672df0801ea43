package authz

import (
	"context"
	"fmt"
	"maps"

	rbacv1 "k8s.io/api/rbac/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

// visitor is called with the rules that a user holds until it returns false.
type visitor = func(source fmt.Stringer, rule *rbacv1.PolicyRule, err error) bool

// A layer resolves the rules of one layer of policy, for users as that layer sees them.
type layer struct {
	step string
	wide *validation.DefaultRuleResolver // ClusterRoleBindings
	// narrow has RoleBindings alone, which never let a user enter the cluster. Nil for
	// none.
	narrow *validation.DefaultRuleResolver
	as     func(c cluster.Name, u user.Info) user.Info
	// lacks, if set, reports whether narrow has no bindings in a namespace.
	lacks func(namespace string) bool
}

// withoutWide lists no ClusterRoleBindings, for narrow.
type withoutWide struct{}

func (withoutWide) ListClusterRoleBindings(context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	return nil, nil
}

func newLayers(p policy) []layer {
	local, admin, bootstrap := localLayer{p}, adminLayer{p}, bootstrapLayer{p}
	return []layer{
		{step: StepBootstrap, as: auth.AccountIn, wide: validation.NewDefaultRuleResolver(bootstrap, bootstrap, bootstrap, bootstrap)},
		{
			step: StepBootstrap, as: seenFromAdmin,
			wide:   validation.NewDefaultRuleResolver(admin, admin, admin, admin),
			narrow: validation.NewDefaultRuleResolver(admin, admin, admin, withoutWide{}),
			lacks:  func(ns string) bool { return len(p.stored.RoleBindings(cluster.Admin, ns)) == 0 },
		},
		{
			step: StepLocal, as: auth.AccountIn,
			wide:   validation.NewDefaultRuleResolver(local, local, local, local),
			narrow: validation.NewDefaultRuleResolver(local, local, local, withoutWide{}),
		},
	}
}

// seenFromAdmin returns the identity of a user of cluster c for bindings in system:admin. A
// service account as a subject there is one of system:admin, never a tenant's with the same
// namespace and name. Bindings name the service accounts of tenants by their foreign name.
func seenFromAdmin(c cluster.Name, u user.Info) user.Info {
	u = auth.AccountIn(c, u)
	if c == cluster.Admin || !auth.IsServiceAccount(u) {
		return u
	}
	global := auth.Foreign(c, u)
	global.Groups = append(global.Groups, serviceaccount.AllServiceAccountsGroup)
	return global
}

// rules resolves the rules of all layers.
type rules struct {
	layers []layer
	local  localLayer
	parent func(cluster.Name) (cluster.Name, bool)
	access rbacv1.PolicyRule // allows entering a cluster
}

var _ validation.AuthorizationRuleResolver = rules{}

func newRules(p policy, parent func(cluster.Name) (cluster.Name, bool)) rules {
	return rules{newLayers(p), localLayer{p}, parent, AccessRule()}
}

// everywhere returns the layers that are the same in every cluster.
func (r rules) everywhere() []layer { return r.layers[:2] }

// A search looks for a rule that allows a request, and for one that lets its user enter the
// cluster.
type search struct {
	a, entry     authorizer.Attributes
	at           string // the step whose rules are being visited
	entered      bool
	allowed      bool
	step, reason string
	errs         []error
}

func (s *search) done() bool { return s.entered && s.allowed }

func (s *search) visit(source fmt.Stringer, rule *rbacv1.PolicyRule, err error) bool {
	if err != nil {
		s.errs = append(s.errs, err)
	}
	if rule == nil {
		return true
	}
	s.entered = s.entered || rbac.RuleAllows(s.entry, rule)
	s.allow(source, rule)
	return !s.done()
}

// visitNarrow is visit for rules of RoleBindings.
func (s *search) visitNarrow(source fmt.Stringer, rule *rbacv1.PolicyRule, err error) bool {
	if err != nil {
		s.errs = append(s.errs, err)
	}
	if rule != nil {
		s.allow(source, rule)
	}
	return !s.allowed
}

func (s *search) allow(source fmt.Stringer, rule *rbacv1.PolicyRule) {
	if !s.allowed && rbac.RuleAllows(s.a, rule) {
		s.allowed, s.reason, s.step = true, "RBAC: allowed by "+source.String(), s.at
	}
}

// search visits the rules that u holds in cluster c. It visits the layers that allow most
// requests first, and ancestors only if these do not allow the request.
func (r rules) search(ctx context.Context, c cluster.Name, u user.Info, s *search) {
	visit := s.visit
	complete := s.entered // whether narrow rules of all identities were visited
	auth.Effective(c, u, func(e user.Info) bool {
		for _, l := range r.layers {
			s.at = l.step
			if l.wide.VisitRulesFor(ctx, l.as(c, e), "", visit); s.done() {
				return false
			}
		}
		if s.entered {
			r.narrow(ctx, c, e, s)
		}
		return !s.done()
	})
	if !s.done() {
		auth.Effective(c, u, func(e user.Info) bool {
			s.at = StepInherited
			r.inherited(ctx, c, e, visit)
			return !s.done()
		})
	}
	if s.entered && !s.allowed && !complete { // narrow rules of earlier identities were skipped
		auth.Effective(c, u, func(e user.Info) bool {
			r.narrow(ctx, c, e, s)
			return !s.allowed
		})
	}
}

// narrow visits the rules that u holds in the namespace of the request.
func (r rules) narrow(ctx context.Context, c cluster.Name, u user.Info, s *search) {
	ns := s.a.GetNamespace()
	for _, l := range r.layers {
		if ns == "" || l.narrow == nil || s.allowed || l.lacks != nil && l.lacks(ns) {
			continue
		}
		s.at = l.step
		l.narrow.VisitRulesFor(ctx, l.as(c, u), ns, s.visitNarrow)
	}
}

// GetRoleReferenceRules implements [validation.AuthorizationRuleResolver].
func (r rules) GetRoleReferenceRules(ctx context.Context, ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	return validation.NewDefaultRuleResolver(r.local, r.local, r.local, r.local).GetRoleReferenceRules(ctx, ref, namespace)
}

// RulesFor implements [validation.AuthorizationRuleResolver].
func (r rules) RulesFor(ctx context.Context, u user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	var all held
	r.VisitRulesFor(ctx, u, namespace, all.visit)
	return all.rules, utilerrors.NewAggregate(all.errs)
}

// held collects the rules that a user holds.
type held struct {
	rules []rbacv1.PolicyRule
	errs  []error
}

func (h *held) visit(_ fmt.Stringer, rule *rbacv1.PolicyRule, err error) bool {
	if rule != nil {
		h.rules = append(h.rules, *rule)
	}
	if err != nil {
		h.errs = append(h.errs, err)
	}
	return true
}

// sources are the bindings visited for the identities of one user. A service account, which
// bindings know by two names, holds the rules of a binding once.
type sources struct {
	layer       int
	before, now map[string]bool
}

// next starts the rules of another identity.
func (s *sources) next() {
	if s.before == nil {
		s.before = map[string]bool{}
	}
	maps.Copy(s.before, s.now)
	s.now = map[string]bool{}
}

// fresh reports whether no earlier identity had a rule of the binding.
func (s *sources) fresh(source fmt.Stringer) bool {
	if source == nil {
		return true
	}
	name := fmt.Sprint(s.layer, source)
	s.now[name] = true
	return !s.before[name]
}

// VisitRulesFor implements [validation.AuthorizationRuleResolver].
func (r rules) VisitRulesFor(ctx context.Context, u user.Info, namespace string, visit func(fmt.Stringer, *rbacv1.PolicyRule, error) bool) {
	c, err := cluster.One(ctx)
	if err != nil {
		visit(nil, nil, err)
		return
	}
	more := true
	var seen sources
	each := func(source fmt.Stringer, rule *rbacv1.PolicyRule, err error) bool {
		if rule != nil && !seen.fresh(source) {
			return more
		}
		more = more && visit(source, rule, err)
		return more
	}
	auth.Effective(c, u, func(e user.Info) bool {
		seen.next()
		for i, l := range r.layers {
			seen.layer = i
			if more {
				l.wide.VisitRulesFor(ctx, l.as(c, e), "", each)
			}
			if more && namespace != "" && l.narrow != nil {
				l.narrow.VisitRulesFor(ctx, l.as(c, e), namespace, each)
			}
		}
		if more {
			r.inherited(ctx, c, e, each)
		}
		return more
	})
}
