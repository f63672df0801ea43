package schedule

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/consumers"
	"github.com/unforked/kcp/internal/workload/engine"
)

// Assignments and TargetStatuses have no owner references. In a foreground deletion, the garbage
// collector would delete them before the workload, and with them what is known about its copies.

// bury removes a workload from all targets, and then lets the server delete it.
func (s *Scheduler) bury(ctx context.Context, id engine.ID, w *unstructured.Unstructured, a *workload.Assignment) error {
	if !slices.Contains(w.GetFinalizers(), workload.PlacedFinalizer) {
		return nil
	}
	if slices.Contains(w.GetFinalizers(), metav1.FinalizerOrphanDependents) {
		return nil // the garbage collector is first
	}
	if a != nil && a.Spec.Workload.UID == string(w.GetUID()) {
		next := *a.Spec.DeepCopy()
		next.Targets, next.Reason, next.Message = nil, "", ""
		targets := s.orphaning()
		for _, t := range a.Spec.Targets {
			if _, exists := targets[t.Key]; t.Phase == workload.Removing && (s.consumers.Report(id, t.Key) == nil || !exists) {
				continue
			}
			next.Targets = append(next.Targets, workload.AssignedTarget{Key: t.Key, Location: t.Location, Phase: workload.Removing, Reason: workload.DeletedReason})
		}
		if len(next.Targets) > 0 {
			return s.assign(ctx, id, w, a, next)
		}
	}
	if left, err := s.unheard(ctx, id); left || err != nil {
		return err // a report that is deleted wakes the task
	}
	if err := s.consumers.DeleteAssignment(ctx, a); err != nil {
		return err
	}
	return s.consumers.Finalize(ctx, id, w, false)
}

// clear deletes what the server knows about an object that does not exist any more, such as one whose
// finalizers a user removed. The engines remove their parts, and then their reports.
func (s *Scheduler) clear(ctx context.Context, k *consumers.Kind, id engine.ID, a *workload.Assignment) error {
	if a == nil && len(s.consumers.ReportsOf(id)) == 0 {
		return nil
	}
	if w, err := s.consumers.Live(ctx, k, id); w != nil || err != nil {
		return err // the cache has it soon
	}
	if _, err := s.unheard(ctx, id); err != nil {
		return err
	}
	return s.consumers.DeleteAssignment(ctx, a)
}

// unheard deletes the reports about an object of targets that do not exist any more. It reports whether
// others are left: they have a copy of the object.
func (s *Scheduler) unheard(ctx context.Context, id engine.ID) (left bool, err error) {
	targets := s.orphaning()
	for _, r := range s.consumers.ReportsOf(id) {
		if _, exists := targets[r.Spec.Key]; exists {
			left = true
			continue
		}
		if err := s.consumers.SaveReport(ctx, id, r.Spec.Key, nil); err != nil {
			return false, err
		}
	}
	return left, nil
}
