package workload

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// A row says what a part waits for, unless there is a reason that says more.
func TestRows(t *testing.T) {
	part := workload.AssignedTarget{Key: "k", Location: "default", Phase: workload.Active, Replicas: new(int32(3))}
	for name, c := range map[string]struct {
		resource string
		change   func(*workload.TargetStatusSpec)
		want     string
	}{
		"a Deployment with all pods":     {"deployments", func(*workload.TargetStatusSpec) {}, "-"},
		"an old generation":              {"deployments", func(s *workload.TargetStatusSpec) { s.Generation = 1 }, "Waiting: it has not applied the latest change"},
		"controllers behind":             {"deployments", func(s *workload.TargetStatusSpec) { s.Observed = false }, "Waiting: its controllers have not seen the latest change"},
		"a Deployment with old pods":     {"deployments", func(s *workload.TargetStatusSpec) { s.Reported = reports(`{"readyReplicas":3,"updatedReplicas":1}`) }, "Waiting: 1 of 3 pods have the latest change"},
		"a Deployment without new pods":  {"deployments", func(s *workload.TargetStatusSpec) { s.Reported = reports(`{"readyReplicas":3}`) }, "Waiting: 0 of 3 pods have the latest change"},
		"a StatefulSet with a partition": {"statefulsets", func(s *workload.TargetStatusSpec) { s.Reported = reports(`{"readyReplicas":3,"updatedReplicas":1}`) }, "-"},
		"a refusal":                      {"deployments", func(s *workload.TargetStatusSpec) { s.Generation, s.Reason, s.Message = 0, "Invalid", "a field" }, "Invalid: a field"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &workload.TargetStatus{Spec: workload.TargetStatusSpec{Workload: workload.WorkloadReference{Resource: c.resource}, Generation: 2, Observed: true,
				Reported: reports(`{"readyReplicas":3,"updatedReplicas":3}`)}}
			c.change(&r.Spec)
			row, _ := rowOf(part, r, 2, "east")
			if got := row[len(row)-1]; got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func reports(status string) *runtime.RawExtension {
	return &runtime.RawExtension{Raw: []byte(status)}
}
