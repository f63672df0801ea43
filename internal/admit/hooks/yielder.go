package hooks

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/unforked/kcp/internal/request/fair"
)

// policyTime limits how long the policies of one cluster may evaluate one request. Kubernetes
// limits the cost of each policy only, to about a second.
const policyTime = 5 * time.Second

// A yielder lets other requests compute between the evaluations of one request. Together these may
// take seconds.
type yielder struct {
	limit *time.Timer
	left  time.Duration // of policyTime, when the limit last started
	since time.Time
	late  error // a Status for the client: no seat was free in time
}

// newYielder returns the yielder of a request, and a context that ends when its evaluations have
// computed for policyTime. The caller must call cancel.
func newYielder(ctx context.Context) (context.Context, *yielder, context.CancelFunc) {
	ctx, end := context.WithCancel(ctx)
	p := &yielder{limit: time.AfterFunc(policyTime, end), left: policyTime, since: time.Now()}
	return ctx, p, func() { p.limit.Stop(); end() }
}

// next waits until the request may go on. The wait does not count for policyTime.
func (p *yielder) next(ctx context.Context) error {
	if p.late != nil || !fair.Computed(ctx) || !p.limit.Stop() {
		return p.late
	}
	p.left -= time.Since(p.since)
	p.late = fair.Continue(ctx)
	p.since = time.Now()
	p.limit.Reset(max(0, p.left))
	return p.late
}

// yieldingValidator calls next before each evaluation.
type yieldingValidator struct {
	validating.Validator
	yielder *yielder
}

// Validate implements [validating.Validator].
func (v yieldingValidator) Validate(ctx context.Context, of schema.GroupVersionResource, object *admission.VersionedAttributes, params runtime.Object, namespace *corev1.Namespace, budget int64, authz authorizer.Authorizer) validating.ValidateResult {
	if err := v.yielder.next(ctx); err != nil {
		return validating.ValidateResult{} // the caller of the dispatcher refuses the request
	}
	return v.Validator.Validate(ctx, of, object, params, namespace, budget, authz)
}

// yieldingMutators calls next before each mutation.
func yieldingMutators(e mutating.PolicyEvaluator, p *yielder) mutating.PolicyEvaluator {
	of := e.Mutators
	e.Mutators = make([]patch.Patcher, len(of))
	for i, each := range of {
		e.Mutators[i] = yieldingPatcher{each, p}
	}
	return e
}

type yieldingPatcher struct {
	patch.Patcher
	yielder *yielder
}

// Patch implements [patch.Patcher].
func (m yieldingPatcher) Patch(ctx context.Context, r patch.Request, budget int64) (runtime.Object, error) {
	if err := m.yielder.next(ctx); err != nil {
		return nil, err
	}
	return m.Patcher.Patch(ctx, r, budget)
}
