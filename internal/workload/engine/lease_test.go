package engine

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/profile"
)

func leased(phase workload.AssignmentPhase) *workload.Assignment {
	a := assignment("here", "there")
	a.Spec.Fencing = workload.LeaseFencing
	a.Spec.Targets[0].Phase = phase
	return a
}

// While the lease of the agent has run out, the engine does not start again what the agent stops, and
// then only if the server says that the target still has it.
func TestLease(t *testing.T) {
	b := newBench(t)
	locked(b.hub, func() any { b.stops, b.cached = true, leased(workload.Active); return nil })
	b.answer(webDeployment(), leased(workload.Active), nil)
	b.Engine.Lease(true)
	b.wakeTask(web().Task())
	until(t, "the part is applied", func() bool { return b.get(t, deployments(), "web") != nil })
	applied(t, b.hub, b.get(t, deployments(), "web"))
	if got := b.get(t, deployments(), "web").GetAnnotations()[workload.FencingAnnotation]; got != workload.LeaseFencing {
		t.Errorf("it is marked %q", got)
	}
	replicas := func() int64 {
		n, _, _ := unstructured.NestedInt64(b.get(t, deployments(), "web").Object, "spec", "replicas")
		return n
	}
	promised := func() *int64 { return locked(b.hub, func() *int64 { return b.report.Spec.StopsWithinSeconds }) }
	if got := promised(); got == nil || *got != 30 {
		t.Errorf("the promise to stop it is not reported: %v", got)
	}
	b.Engine.Lease(false)
	patch := []byte(`{"spec":{"replicas":0}}`)
	if _, err := b.physical.Resource(deployments().WithVersion("v1")).Namespace(b.at).Patch(t.Context(), "web", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	// It has begun elsewhere, which the cache does not know yet.
	before := b.answer(webDeployment(), leased(workload.Removing), nil)
	b.Engine.Lease(true)
	until(t, "the server is asked twice", func() bool { return b.asked() >= before+2 })
	if n := replicas(); n != 0 {
		t.Fatalf("it runs %d replicas, and another target does", n)
	}
	b.answer(webDeployment(), leased(workload.Active), nil)
	until(t, "it goes on", func() bool { return replicas() == 3 })
	before = b.asked()
	if _, err := b.physical.Resource(deployments().WithVersion("v1")).Namespace(b.at).Patch(t.Context(), "web", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "drift is repaired", func() bool { return replicas() == 3 })
	if b.asked() != before {
		t.Error("the server is asked again though the lease goes on")
	}
}

// The promise to stop a workload is that of the longest grace period that its pods may have.
func TestPromise(t *testing.T) {
	w := func(seconds, generation int64) *unstructured.Unstructured {
		o := webDeployment()
		o.SetGeneration(generation)
		if err := unstructured.SetNestedField(o.Object, seconds, "spec", "template", "spec", "terminationGracePeriodSeconds"); err != nil {
			t.Fatal(err)
		}
		return o
	}
	copied := func(current, update string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"currentRevision": current, "updateRevision": update}}}
	}
	p := &profile.Profile{GroupVersionResource: deployments().WithVersion("v1"), Template: []string{"spec", "template"}, Quiesce: map[string]any{}}
	fenced, free := &workload.AssignmentSpec{Fencing: workload.LeaseFencing}, &workload.AssignmentSpec{}
	for name, c := range map[string]struct {
		how        *workload.AssignmentSpec
		want, have *unstructured.Unstructured
		last       *int64
		seen       bool
		promise    *int64
	}{
		"no fencing":                   {how: free, want: w(30, 2), have: copied("a", "a"), last: new(int64(30)), seen: true},
		"first":                        {how: fenced, want: w(30, 2), promise: new(int64(30))},
		"longer":                       {how: fenced, want: w(300, 2), have: copied("a", "a"), last: new(int64(30)), seen: true, promise: new(int64(300))},
		"shorter, not yet seen":        {how: fenced, want: w(30, 3), have: copied("a", "a"), last: new(int64(300)), seen: true, promise: new(int64(300))},
		"shorter, not yet rolled out":  {how: fenced, want: w(30, 2), have: copied("a", "b"), last: new(int64(300)), seen: true, promise: new(int64(300))},
		"shorter, rolled out":          {how: fenced, want: w(30, 2), have: copied("b", "b"), last: new(int64(300)), seen: true, promise: new(int64(30))},
		"shorter, but not observed":    {how: fenced, want: w(30, 2), have: copied("b", "b"), last: new(int64(300)), promise: new(int64(300))},
		"shorter, of a copy that left": {how: fenced, want: w(30, 2), last: new(int64(300)), seen: true, promise: new(int64(300))},
	} {
		j := &job{Engine: &Engine{lease: lease{kept: true, valid: true}}, profile: p, how: c.how, want: c.want, have: c.have}
		if c.last != nil {
			j.report = &workload.TargetStatus{Spec: workload.TargetStatusSpec{Workload: Reference(deployments(), c.want), Generation: 2, Observed: c.seen, StopsWithinSeconds: c.last}}
		}
		if got := j.promise(); (got == nil) != (c.promise == nil) || got != nil && *got != *c.promise {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Pods begin after the NetworkPolicies of their namespace.
func TestPoliciesComeFirst(t *testing.T) {
	b := newBench(t)
	policies := profile.Policies().GroupResource()
	policy := assignment("here")
	policy.Name, policy.Spec.Workload = AssignmentName(policies, "deny"), workload.WorkloadReference{Group: policies.Group, Resource: policies.Resource, Name: "deny"}
	locked(b.hub, func() any { b.policy = policy; return nil })
	b.wakeTask(web().Task())
	until(t, "it waits", func() bool { return locked(b.hub, func() bool { return b.guarded >= 2 }) })
	if b.get(t, deployments(), "web") != nil {
		t.Fatal("pods begin before the NetworkPolicy")
	}
	locked(b.hub, func() any {
		b.guard = &workload.TargetStatus{Spec: workload.TargetStatusSpec{Generation: 1}}
		return nil
	})
	until(t, "the part is applied", func() bool { return b.get(t, deployments(), "web") != nil })
}
