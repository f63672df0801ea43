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
