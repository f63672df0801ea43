package hooks

import (
	"context"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/generic"
	"k8s.io/apiserver/pkg/admission/plugin/policy/matching"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/kubernetes/pkg/kubeapiserver/admission/exclusion"

	"github.com/unforked/kcp/internal/admit"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/upstream"
)

// policies are the policies of one kind, mutating or validating, of all clusters. A policy is
// compiled when a request might concern it, and the result is kept while it is used.
type policies[P, B runtime.Object, E generic.Evaluator] struct {
	hooks    *Hooks
	policies *feed.Table[*row[P]]
	bindings *feed.Table[*row[B]]
	// handles are the operations that policies are evaluated for.
	handles []admission.Operation
	policy  func(P) generic.PolicyAccessor
	binding func(B) generic.BindingAccessor
	compile func(P) E
	// yielding returns an evaluator that yields between the evaluations of a request.
	yielding func(E, *yielder) E
	// dispatcher returns the dispatcher of Kubernetes for one request.
	dispatcher func(view) generic.Dispatcher[generic.PolicyHook[P, B, E]]
}

func newValidators(h *Hooks) *policies[*validating.Policy, *validating.PolicyBinding, validating.Validator] {
	return &policies[*validating.Policy, *validating.PolicyBinding, validating.Validator]{
		hooks:    h,
		policies: newTable(h.config.Store, "validatingadmissionpolicies", func() *validating.Policy { return &validating.Policy{} }),
		bindings: newTable(h.config.Store, "validatingadmissionpolicybindings", func() *validating.PolicyBinding { return &validating.PolicyBinding{} }),
		handles:  []admission.Operation{admission.Connect, admission.Create, admission.Delete, admission.Update},
		policy:   validating.NewValidatingAdmissionPolicyAccessor, binding: validating.NewValidatingAdmissionPolicyBindingAccessor,
		compile:  upstream.CompileValidating,
		yielding: func(v validating.Validator, p *yielder) validating.Validator { return yieldingValidator{v, p} },
		dispatcher: func(v view) generic.Dispatcher[validating.PolicyHook] {
			return validating.NewDispatcher(v.authorizer(), generic.NewPolicyMatcher(v.matcher()))
		},
	}
}

func newMutators(h *Hooks) *policies[*mutating.Policy, *mutating.PolicyBinding, mutating.PolicyEvaluator] {
	return &policies[*mutating.Policy, *mutating.PolicyBinding, mutating.PolicyEvaluator]{
		hooks:    h,
		policies: newTable(h.config.Store, "mutatingadmissionpolicies", func() *mutating.Policy { return &mutating.Policy{} }),
		bindings: newTable(h.config.Store, "mutatingadmissionpolicybindings", func() *mutating.PolicyBinding { return &mutating.PolicyBinding{} }),
		handles:  []admission.Operation{admission.Create, admission.Update, admission.Connect},
		policy:   mutating.NewMutatingAdmissionPolicyAccessor, binding: mutating.NewMutatingAdmissionPolicyBindingAccessor,
		compile: upstream.CompileMutating, yielding: yieldingMutators,
		dispatcher: func(v view) generic.Dispatcher[mutating.PolicyHook] {
			return mutating.NewDispatcher(v.authorizer(), v.matcher(), v.types.in(v.in))
		},
	}
}

// unrestrained are the resources that no policy concerns. Without the exemption of policies
// themselves, one that refuses everything could not be deleted.
func unrestrained() []schema.GroupResource {
	all := exclusion.Excluded()
	for _, plural := range []string{"validatingadmissionpolicies", "validatingadmissionpolicybindings", "mutatingadmissionpolicies", "mutatingadmissionpolicybindings"} {
		all = append(all, schema.GroupResource{Group: admissionregistrationv1.GroupName, Resource: plural})
	}
	return all
}

// dispatch evaluates the policies of a cluster that match a request.
func (p *policies[P, B, E]) dispatch(ctx context.Context, from source, r admit.Request, o admission.ObjectInterfaces) (bool, error) {
	bound := p.bound(from)
	if len(bound) == 0 || !slices.Contains(p.handles, r.GetOperation()) || slices.ContainsFunc(unrestrained(), r.Is) {
		return false, nil
	}
	if err := readable(bound); err != nil {
		return true, err
	}
	v := newView(p.hooks, place{from.cluster, r.Cluster}, nil)
	active, err := p.active(v, bound)
	if err != nil || len(active) == 0 {
		return len(active) > 0, err
	}
	ctx, y, cancel := newYielder(ctx)
	defer cancel()
	for i := range active {
		active[i].Evaluator = p.yielding(active[i].Evaluator, y)
	}
	if err = p.dispatcher(v).Dispatch(ctx, r.Attributes, o, active); y.late != nil {
		return true, y.late
	}
	if refusal, ok := err.(apierrors.APIStatus); ok && from.above { //nolint:errorlint // dispatchers do not wrap it
		status := refusal.Status()
		status.Message += " (a policy of workspace " + string(p.hooks.config.PathOf(from.cluster)) + " for all workspaces below it)"
		err = &apierrors.StatusError{ErrStatus: status}
	}
	return true, err
}

// bound returns the bindings that apply from a source. One that cannot be read might apply.
func (p *policies[P, B, E]) bound(from source) []*row[B] {
	bound := p.bindings.List(from.cluster, "")
	if from.above {
		bound = slices.DeleteFunc(bound, func(b *row[B]) bool { return !b.descends })
	}
	return bound
}

// descend reports whether a cluster has bindings that also apply below it.
func (p *policies[P, B, E]) descend(c cluster.Name) bool {
	return len(p.bound(source{c, true})) > 0
}

// active returns the policies of a cluster that have bindings, in the order of the names of
// these.
func (p *policies[P, B, E]) active(v view, bound []*row[B]) ([]generic.PolicyHook[P, B, E], error) {
	var all []generic.PolicyHook[P, B, E]
	at := map[string]int{}
	for _, b := range bound {
		name := p.binding(b.object).GetPolicyName().Name
		if i, known := at[name]; known {
			all[i].Bindings = append(all[i].Bindings, b.object)
			continue
		}
		policy, ok := p.policies.Get(v.from, "", name)
		if !ok {
			continue // it may be created later
		}
		if err := readable([]*row[P]{policy}); err != nil {
			return nil, err
		}
		hook := generic.PolicyHook[P, B, E]{Policy: policy.object, Bindings: []B{b.object}, Evaluator: compiledBy(p.hooks.compiled, v.from, policy, p.compile)}
		if kind := p.policy(policy.object).GetParamKind(); kind != nil {
			hook.ParamInformer, hook.ParamScope, hook.ConfigurationError = v.params(kind)
		}
		at[name] = len(all)
		all = append(all, hook)
	}
	return all, nil
}

// matcher returns the matcher of Kubernetes for the namespaces of the request's cluster.
func (v view) matcher() *matching.Matcher {
	return matching.NewMatcher(namespaces{view: v}, client{view: v})
}
