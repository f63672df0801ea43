// Package authz authorizes requests, with the evaluation of RBAC and the webhooks of Kubernetes. It
// hides tenancy: it reads the logical cluster of a request from its context, and knows which rights
// come from other clusters.
package authz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

// Denied is the reason that users get for every refusal. It has no details, so that a
// missing cluster looks the same as one that the user may not enter.
const Denied = "access denied"

// Names of the steps of a decision, as in audit events.
const (
	StepRequiredGroups = "01-requiredgroups"
	StepContent        = "02-content"
	StepBootstrap      = "05-bootstrap"
	StepLocal          = "05-local"
	StepInherited      = "05-inherited" // by roles of a parent workspace
	StepWebhook        = "webhook"
)

// A Step is the result of one step of a decision, for the audit log.
type Step struct {
	Name     string
	Decision authorizer.Decision
	Reason   string
}

// Authorization configures an Authorizer. With its zero value no cluster exists, and only
// system:masters is allowed.
type Authorization struct {
	// RBAC holds the stored roles and bindings; nil means none.
	RBAC RBAC

	// Exists reports whether a logical cluster exists.
	Exists func(ctx context.Context, c cluster.Name) bool

	// Cluster, if set, returns the groups, phase and parent that authorization in a cluster
	// depends on, and whether the cluster is known. It must answer from memory.
	Cluster func(c cluster.Name) (Cluster, bool)

	// Limited, if set, returns the cluster whose RBAC limits what the users of cluster c may
	// do with a resource of c, and whether there is one.
	Limited func(c cluster.Name, gr schema.GroupResource) (cluster.Name, bool)

	// Fresh, if set, is called before a request is refused on stored data.
	Fresh auth.Fresh

	// Current, if set, is called before a request is allowed on stored data.
	Current auth.Current

	// OfUsers are paths outside of all clusters that every authenticated user may request.
	OfUsers []string

	AuthorizationOptions

	// Record, if set, receives the steps of every decision that had steps.
	Record func(ctx context.Context, steps []Step)
}

// An Authorizer authorizes requests in the logical cluster of their context. It refuses all
// requests with the reason [Denied].
type Authorizer struct {
	options   Authorization
	bootstrap *Bootstrap
	open      authorizer.Authorizer
	entry     authorizer.Attributes // the access that entering a cluster requires
	rules     rules
	steps     atomic.Pointer[steps]
	seen      []byte // last content of the file of steps
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

// Rules returns the rules that users hold, including the bootstrap policy. The RBAC
// registries use them to prevent privilege escalation. The registries first authorize the
// verbs "bind" and "escalate" with z, so their refusals rest on fresh data too.
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

// A verdict is a decision with its reasons.
type verdict struct {
	decision authorizer.Decision
	reason   string
	evidence bool // rests on stored objects, so newer data may change it
	steps    []Step
	closed   bool  // only open paths and system:masters are allowed here
	err      error // an authorizer failed to decide
}

func (z *Authorizer) verdict(ctx context.Context, a authorizer.Attributes) verdict {
	if c, _ := cluster.From(ctx); auth.PrivilegedIn(c, a.GetUser()) {
		return verdict{decision: authorizer.DecisionAllow, reason: "the user is in " + user.SystemPrivilegedGroup}
	}
	return z.decide(ctx, a)
}

// decide runs the steps in order until one allows or denies.
func (z *Authorizer) decide(ctx context.Context, a authorizer.Attributes) verdict {
	if g := grantFor(ctx, a.GetUser()); g != nil {
		v := g.verdict(a)
		if v.decision == authorizer.DecisionAllow && !g.Unlimited {
			v = z.limit(ctx, a, v)
		}
		return v
	}
	all := verdict{decision: authorizer.DecisionNoOpinion}
	for _, ask := range z.steps.Load().ask {
		v := z.confirmed(ctx, func() verdict { return ask(ctx, a) })
		v.steps = append(all.steps, v.steps...)
		if v.err == nil {
			v.err = all.err
		}
		v.closed = v.closed || all.closed
		if all = v; v.decision == authorizer.DecisionAllow {
			return z.limit(ctx, a, all)
		} else if v.decision != authorizer.DecisionNoOpinion {
			return all
		}
	}
	if all.closed {
		all.decision = authorizer.DecisionDeny // skips the authorizers of an embedding program too
	}
	return all
}

// confirmed returns the verdict of ask, or of a second call of ask if newer data may change it.
func (z *Authorizer) confirmed(ctx context.Context, ask func() verdict) verdict {
	v := ask()
	switch again, err := z.again(ctx, v); {
	case err != nil:
		return verdict{decision: authorizer.DecisionDeny, reason: err.Error(), evidence: true}
	case again:
		return ask()
	}
	return v
}

// again reports whether v has to be decided again on newer data. On an error the request
// must be refused: the data may be too old.
func (z *Authorizer) again(ctx context.Context, v verdict) (bool, error) {
	switch {
	case !v.evidence:
		return false, nil
	case v.decision == authorizer.DecisionAllow:
		return z.options.Current.Confirms(ctx)
	default:
		return ctx.Value(settledKey{}) == nil && z.options.Fresh.CaughtUp(ctx), nil
	}
}

// openPaths allows the paths that are open to everyone.
func (z *Authorizer) openPaths(ctx context.Context, a authorizer.Attributes) verdict {
	if d, reason, _ := z.open.Authorize(ctx, a); d == authorizer.DecisionAllow {
		return verdict{decision: d, reason: reason}
	}
	return verdict{decision: authorizer.DecisionNoOpinion}
}

// place returns the cluster in which a is decided. It is empty for metrics, which the
// process has once for all clusters. If decided is not nil, it is the verdict, and the
// cluster is empty.
func (z *Authorizer) place(ctx context.Context, a authorizer.Attributes) (c cluster.Name, decided *verdict) {
	c, ok := cluster.From(ctx)
	ofAll := ofProcess(ctx, a)
	switch {
	case (ofAll || !ok) && isMetrics(a):
		return "", nil
	case ofAll:
		return "", &verdict{decision: authorizer.DecisionDeny, reason: "the path belongs to the process, not to a logical cluster"}
	case !ok && z.ofUsers(a):
		return "", &verdict{decision: authorizer.DecisionAllow, reason: "every authenticated user may request this path"}
	case !ok:
		return "", &verdict{decision: authorizer.DecisionNoOpinion, reason: "no logical cluster in the request"}
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

// ofUsers reports whether a requests a path of OfUsers and its user is authenticated.
func (z *Authorizer) ofUsers(a authorizer.Attributes) bool {
	return !a.IsResourceRequest() && slices.Contains(z.options.OfUsers, a.GetPath()) && auth.IsMember("", a.GetUser(), user.AllAuthenticated)
}

// stored decides by the stored roles and bindings of the cluster.
func (z *Authorizer) stored(ctx context.Context, a authorizer.Attributes) verdict {
	c, decided := z.place(ctx, a)
	switch {
	case decided != nil:
		return *decided
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
	found := z.byRules(ctx, c, a, home)
	found.steps = append(v.steps, found.steps...)
	return found
}

// atHome reports whether u may enter cluster c without a rule. Service accounts of c may,
// and the groups that administer logical clusters.
func atHome(c cluster.Name, u user.Info) bool {
	found := false
	auth.Effective(c, u, func(e user.Info) bool {
		e = auth.AccountIn(c, e)
		found = auth.IsServiceAccount(e) || auth.InGroup(e, auth.AdminGroup) || auth.InGroup(e, auth.LogicalClusterAdminGroup)
		return !found
	})
	return found
}

// ofProcess reports whether a requests a path that the process has once for all clusters.
// The path may follow that of a cluster, but the owner of the cluster cannot grant it. A
// SubjectAccessReview of such a path is different: tenants authorize paths of their own
// programs with it.
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

// isMetrics reports whether a requests the metrics of the process. They belong to no
// cluster; RBAC of root authorizes them.
func isMetrics(a authorizer.Attributes) bool {
	p := a.GetPath()
	return !a.IsResourceRequest() && (p == "/metrics" || strings.HasPrefix(p, "/metrics/"))
}

// byRules decides a by the rules that its user holds in cluster c. Unless entered is set,
// the rules must also allow the user to enter c. One pass over the bindings decides both.
func (z *Authorizer) byRules(ctx context.Context, c cluster.Name, a authorizer.Attributes, entered bool) verdict {
	s := search{a: a, entry: z.entry, entered: entered}
	z.rules.search(ctx, c, a.GetUser(), &s)
	v := verdict{decision: authorizer.DecisionNoOpinion, evidence: true}
	switch {
	case !s.entered:
		v.reason = "may not enter the logical cluster: no rule allows the verb \"access\" on \"/\""
		z.step(&v, Step{StepContent, v.decision, v.reason})
	case !s.allowed:
		v.reason = "no RBAC rule allows it"
		if len(s.errs) > 0 {
			v.reason += fmt.Sprintf(": %v", utilerrors.NewAggregate(s.errs))
		}
		z.step(&v, Step{StepContent, authorizer.DecisionAllow, ""})
		z.step(&v, Step{StepLocal, v.decision, v.reason})
	default:
		v.decision, v.reason = authorizer.DecisionAllow, s.reason
		z.step(&v, Step{StepContent, authorizer.DecisionAllow, ""})
		z.step(&v, Step{s.step, authorizer.DecisionAllow, s.reason})
	}
	return v
}

// As returns the attributes of a request with another user.
func As(a authorizer.Attributes, u user.Info) authorizer.Attributes { return withUser{a, u} }

// withUser are attributes with another user.
type withUser struct {
	authorizer.Attributes
	user user.Info
}

// GetUser implements [authorizer.Attributes].
func (a withUser) GetUser() user.Info { return a.user }

// step adds s to v if steps are recorded.
func (z *Authorizer) step(v *verdict, s Step) {
	if z.options.Record != nil {
		v.steps = append(v.steps, s)
	}
}

// RulesFor implements [authorizer.RuleResolver]: it returns the rules that u holds in the
// cluster of the context. It waits for fresh data first, as a list of rules is not decided
// a second time.
func (z *Authorizer) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	z.options.Fresh.CaughtUp(ctx)
	c, err := cluster.One(ctx)
	if err != nil {
		return nil, nil, false, err
	}
	if c.System() && !auth.PrivilegedIn(c, u) {
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
