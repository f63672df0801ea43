package schedule

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/consumers"
	"github.com/unforked/kcp/internal/workload/engine"
)

// decisionOf returns the Assignment of an object. If that is lost, it returns what the reports of the targets
// say about it.
func (s *Scheduler) decisionOf(id engine.ID) *workload.Assignment {
	if a := s.consumers.Assignment(id); a != nil {
		return a
	}
	if k := s.consumers.Kind(id.GroupResource); k != nil {
		if w := k.Objects.Get(id.Key); w != nil {
			return s.recalled(k, id, w)
		}
	}
	return nil
}

// recalled returns an Assignment made from the reports about an object: targets that report have a copy. It
// returns nil if there is no report. The server does not have the Assignment yet, so it has no UID.
func (s *Scheduler) recalled(k *consumers.Kind, id engine.ID, w *unstructured.Unstructured) *workload.Assignment {
	a := &workload.Assignment{Spec: workload.AssignmentSpec{Workload: engine.Reference(id.GroupResource, w), Replicas: k.Wants(w)}}
	targets := s.orphaning()
	for _, r := range s.consumers.ReportsOf(id) {
		if _, exists := targets[r.Spec.Key]; !exists || r.Spec.Workload.UID != string(w.GetUID()) {
			continue
		}
		a.Spec.Targets = append(a.Spec.Targets, workload.AssignedTarget{Key: r.Spec.Key, Location: r.Spec.Location, Replicas: r.Spec.Replicas, Phase: workload.Active})
	}
	if len(a.Spec.Targets) == 0 {
		return nil
	}
	if k.Class == workload.Singleton && len(a.Spec.Targets) > 1 {
		// Reports do not say which of them has to stop. It leaves all before it begins anew.
		for i := range a.Spec.Targets {
			a.Spec.Targets[i].Phase = workload.Removing
		}
	}
	slices.SortFunc(a.Spec.Targets, func(a, b workload.AssignedTarget) int { return cmp.Compare(a.Key, b.Key) })
	return a
}

// stored reports whether the server has an Assignment.
func stored(a *workload.Assignment) bool { return a != nil && a.UID != "" }
