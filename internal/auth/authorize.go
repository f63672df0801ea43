package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"

	"github.com/unforked/kcp/internal/cluster"
)

// Denied is the reason that users are given for every refusal. It says nothing
// more, so that nobody can tell a cluster that does not exist from one that he
// may not enter.
const Denied = "access denied"

// The steps of a decision, as audit events name them.
const (
	StepRequiredGroups = "01-requiredgroups"
	StepContent        = "02-content"
	StepBootstrap      = "05-bootstrap"
	StepLocal          = "05-local"
	StepInherited      = "05-inherited" // of a workspace above
	StepWebhook        = "webhook"
)

// A Step is what one step of a decision found, for the audit log.
type Step struct {
	Name     string
	Decision authorizer.Decision
	Reason   string
}

// Authorization says what requests are decided on. Its zero value knows no
// cluster and lets in nobody but system:masters.
type Authorization struct {
	// RBAC holds the stored roles and bindings; nil means that there are none.
	RBAC RBAC

	// Exists reports whether there is a logical cluster of that name.
	Exists func(ctx context.Context, c cluster.Name) bool

	// Cluster, if set, returns what requests to a logical cluster depend on besides
	// its RBAC, and whether it is known. It must answer from memory.
	Cluster func(c cluster.Name) (Cluster, bool)

	// Fresh, if set, is asked before anything is refused on stored evidence.
	Fresh Fresh

	// OfUsers are the paths, outside of all clusters, that everybody who is
	// authenticated gets.
	OfUsers []string

	AuthorizationOptions

	// Record, if set, gets the steps of every decision that needed any.
	Record func(ctx context.Context, steps []Step)
}

// An Authorizer decides what a request may do in the logical cluster of its
// context. What it refuses is refused with the reason [Denied].
type Authorizer struct {
	options   Authorization
	bootstrap *Bootstrap
	open      authorizer.Authorizer
	entry     authorizer.Attributes // what entering a cluster needs
	rules     rules
	steps     atomic.Pointer[steps]
	seen      []byte // of the file of steps: what was last read
}

var (
	_ authorizer.Authorizer   = (*Authorizer)(nil)
	_ authorizer.RuleResolver = (*Authorizer)(nil)
)

// NewAuthorizer returns an Authorizer for o.
func NewAuthorizer(o Authorization) (*Authorizer, error) {
	if o.RBAC == nil {
		o.RBAC = noRBAC{}
	}
	if o.Exists == nil {
		o.Exists = func(context.Context, cluster.Name) bool { return false }
	}
	open, err := o.openPaths()
	if err != nil {
		return nil, err
	}
	bootstrap, err := NewBootstrap()
	if err != nil {
		return nil, err
	}
	z := &Authorizer{
		options:   o,
		bootstrap: bootstrap,
		open:      open,
		entry:     authorizer.AttributesRecord{Verb: "access", Path: "/"},
		rules:     newRules(newPolicy(bootstrap, o.RBAC), o.parent),
	}
	configured, seen, err := o.read()
	if err != nil {
		return nil, err
	}
	z.seen = seen
	z.steps.Store(z.build(configured))
	return z, nil
}

// Bootstrap returns the policy that applies in all clusters without being stored.
func (z *Authorizer) Bootstrap() *Bootstrap { return z.bootstrap }

// Rules returns the rules that users hold, bootstrap policy included, as the RBAC
// registries need them to stop people from granting more than they have. These
// registries ask z for the verbs "bind" and "escalate" before, so that what they
// refuse is refused on fresh evidence too.
func (z *Authorizer) Rules() validation.AuthorizationRuleResolver { return grantedRules{z.rules} }

// Authorize implements [authorizer.Authorizer].
func (z *Authorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser() == nil {
		return authorizer.DecisionDeny, Denied, errors.New("authorize: the request has no user; authenticate it first")
	}
	v := z.verdict(ctx, a)
	if z.options.Record != nil && len(v.steps) > 0 {
		z.options.Record(ctx, v.steps)
	}
	if v.decision == authorizer.DecisionAllow {
		return v.decision, v.reason, nil
	}
	if log := klog.FromContext(ctx).V(4); log.Enabled() {
		c, _ := cluster.From(ctx)
		log.Info("request refused", "cluster", c, "user", a.GetUser().GetName(), "resource", a.GetResource(), "reason", v.reason)
	}
	return v.decision, Denied, v.err
}

// A verdict is a decision and what it rests on.
type verdict struct {
	decision authorizer.Decision
	reason   string
	evidence bool // rests on stored objects, so it may be another one later
	steps    []Step
	err      error // somebody who was asked could not decide
}

func (z *Authorizer) verdict(ctx context.Context, a authorizer.Attributes) verdict {
	if c, _ := cluster.From(ctx); privileged(c, a.GetUser()) {
		return verdict{decision: authorizer.DecisionAllow, reason: "the user is in " + user.SystemPrivilegedGroup}
	}
	return z.decide(ctx, a)
}

// decide asks one step after the other until one allows or denies.
func (z *Authorizer) decide(ctx context.Context, a authorizer.Attributes) verdict {
	if v, ok := byGrant(ctx, a); ok {
		return v
	}
	all := verdict{decision: authorizer.DecisionNoOpinion}
	for _, ask := range z.steps.Load().ask {
		v := ask(ctx, a)
		if v.evidence && v.decision != authorizer.DecisionAllow && ctx.Value(settledKey{}) == nil && z.options.Fresh.caughtUp(ctx) {
			v = ask(ctx, a)
		}
		v.steps = append(all.steps, v.steps...)
		if v.err == nil {
			v.err = all.err
		}
		if all = v; v.decision != authorizer.DecisionNoOpinion {
			break
		}
	}
	return all
}

// openPaths decides by the paths that are open to everybody.
func (z *Authorizer) openPaths(ctx context.Context, a authorizer.Attributes) verdict {
	if d, reason, _ := z.open.Authorize(ctx, a); d == authorizer.DecisionAllow {
		return verdict{decision: d, reason: reason}
	}
	return verdict{decision: authorizer.DecisionNoOpinion}
}

// place returns the cluster that a is decided in, or none for what the process has
// once for all clusters. If it is nowhere that anybody but system:masters may do
// anything, it returns why.
func (z *Authorizer) place(ctx context.Context, a authorizer.Attributes) (c cluster.Name, refused *verdict) {
	c, ok := cluster.From(ctx)
	if ofProcess(ctx, a) {
		ok = false
	}
	switch {
	case !ok && isMetrics(a):
		return "", nil
	case !ok && z.ofUsers(a):
		return "", &verdict{decision: authorizer.DecisionAllow, reason: "everybody who is authenticated gets this path"}
	case !ok:
		return "", &verdict{decision: authorizer.DecisionDeny, reason: "no logical cluster in the request"}
	case c == cluster.All:
		return "", &verdict{decision: authorizer.DecisionDeny, reason: "a request to all logical clusters"}
	case c.System():
		return "", &verdict{decision: authorizer.DecisionDeny, reason: "a system cluster"}
	case !z.options.Exists(ctx, c):
		v := &verdict{decision: authorizer.DecisionDeny, reason: "unknown logical cluster", evidence: true}
		z.step(v, Step{StepContent, v.decision, v.reason})
		return "", v
	}
	return c, nil
}

// ofUsers reports whether a is for what everybody who is authenticated gets.
func (z *Authorizer) ofUsers(a authorizer.Attributes) bool {
	return !a.IsResourceRequest() && slices.Contains(z.options.OfUsers, a.GetPath()) && IsMember("", a.GetUser(), user.AllAuthenticated)
}

// stored decides by the roles and bindings of the cluster.
func (z *Authorizer) stored(ctx context.Context, a authorizer.Attributes) verdict {
	c, refused := z.place(ctx, a)
	switch {
	case refused != nil:
		return *refused
	case c == "":
		return z.byRules(cluster.With(ctx, cluster.Root), cluster.Root, a, true)
	case deep(ctx):
		return z.byRules(ctx, c, a, true)
	}
	v := verdict{evidence: true}
	if refused := z.groupsAndPhase(c, a, &v); refused != nil {
		return *refused
	}
	home := atHome(c, a.GetUser())
	if home && !a.IsResourceRequest() && a.GetVerb() == z.entry.GetVerb() && a.GetPath() == z.entry.GetPath() {
		v.decision, v.reason = authorizer.DecisionAllow, "the user is at home in the logical cluster"
		z.step(&v, Step{StepContent, v.decision, v.reason})
		return v
	}
	decided := z.byRules(ctx, c, a, home)
	decided.steps = append(v.steps, decided.steps...)
	return decided
}

// atHome reports whether u need not be let into cluster c: he is a service account
// of it, or lets others in.
func atHome(c cluster.Name, u user.Info) bool {
	found := false
	effective(c, u, func(e user.Info) bool {
		e = seenFrom(c, e)
		found = isServiceAccount(e) || inGroup(e, AdminGroup) || inGroup(e, LogicalClusterAdminGroup)
		return !found
	})
	return found
}

// ofProcess reports whether a is a request for what the process has once for all
// clusters. Its path may follow that of a cluster, but the owner of the cluster
// has no say in who gets it. A SubjectAccessReview for such a path is no request
// for it: tenants guard paths of their own programs that way.
func ofProcess(ctx context.Context, a authorizer.Attributes) bool {
	if info, ok := request.RequestInfoFrom(ctx); !ok || info.IsResourceRequest || a.IsResourceRequest() {
		return false
	}
	first, _, _ := strings.Cut(strings.TrimLeft(a.GetPath(), "/"), "/")
	switch first {
	case "metrics", "debug", "logs", "configz", "flagz", "statusz":
		return true
	}
	return false
}

// isMetrics reports whether a is for the metrics of the process, which belong to
// no cluster and are guarded by RBAC of root.
func isMetrics(a authorizer.Attributes) bool {
	p := a.GetPath()
	return !a.IsResourceRequest() && (p == "/metrics" || strings.HasPrefix(p, "/metrics/"))
}

// byRules decides a by the rules that its user holds in cluster c. Unless he is
// in the cluster already, they have to let him enter it too. Both is found out in
// one pass over the bindings.
func (z *Authorizer) byRules(ctx context.Context, c cluster.Name, a authorizer.Attributes, entered bool) verdict {
	s := search{a: a, entry: z.entry, entered: entered}
	z.rules.search(ctx, c, a.GetUser(), &s)
	entered, allowed, reason, step, errs := s.entered, s.allowed, s.reason, s.step, s.errs
	v := verdict{decision: authorizer.DecisionNoOpinion, evidence: true}
	switch {
	case !entered:
		v.reason = "may not enter the logical cluster: no rule allows the verb \"access\" on \"/\""
		z.step(&v, Step{StepContent, v.decision, v.reason})
	case !allowed:
		v.reason = "no RBAC rule allows it"
		if len(errs) > 0 {
			v.reason += fmt.Sprintf(": %v", utilerrors.NewAggregate(errs))
		}
		z.step(&v, Step{StepContent, authorizer.DecisionAllow, ""})
		z.step(&v, Step{StepLocal, v.decision, v.reason})
	default:
		v.decision, v.reason = authorizer.DecisionAllow, reason
		z.step(&v, Step{StepContent, authorizer.DecisionAllow, ""})
		z.step(&v, Step{step, authorizer.DecisionAllow, reason})
	}
	return v
}

// step adds what a step found to v if anybody wants to know.
func (z *Authorizer) step(v *verdict, s Step) {
	if z.options.Record != nil {
		v.steps = append(v.steps, s)
	}
}

// RulesFor implements [authorizer.RuleResolver]: the rules that u holds in the
// cluster of the context. They are read on fresh evidence, because nobody decides
// a list of rules once more.
func (z *Authorizer) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	z.options.Fresh.caughtUp(ctx)
	c, err := cluster.One(ctx)
	if err != nil {
		return nil, nil, false, err
	}
	if c.System() && !privileged(c, u) {
		return nil, nil, false, nil
	}
	held, err := z.Rules().RulesFor(ctx, u, namespace)
	var resources []authorizer.ResourceRuleInfo
	var paths []authorizer.NonResourceRuleInfo
	for _, r := range held {
		if len(r.Resources) > 0 {
			resources = append(resources, &authorizer.DefaultResourceRuleInfo{
				Verbs: r.Verbs, APIGroups: r.APIGroups, Resources: r.Resources, ResourceNames: r.ResourceNames,
			})
		}
		if len(r.NonResourceURLs) > 0 {
			paths = append(paths, &authorizer.DefaultNonResourceRuleInfo{Verbs: r.Verbs, NonResourceURLs: r.NonResourceURLs})
		}
	}
	return resources, paths, z.steps.Load().foreign, err
}
