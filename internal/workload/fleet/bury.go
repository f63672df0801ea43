package fleet

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
)

// Assignments and TargetStatuses have no owner references. In a foreground deletion, the garbage
// collector would delete them before the workload, and with them what is known about its copies.

// bury removes a workload from all targets, and then lets the server delete it.
func (f *fleet) bury(ctx context.Context, id engine.ID, w *unstructured.Unstructured, a *workload.Assignment) error {
	if !slices.Contains(w.GetFinalizers(), workload.PlacedFinalizer) {
		return nil
	}
	if slices.Contains(w.GetFinalizers(), metav1.FinalizerOrphanDependents) {
		return nil // the garbage collector is first
	}
	if a != nil && a.Spec.Workload.UID == string(w.GetUID()) {
		next := *a.Spec.DeepCopy()
		next.Targets, next.Reason, next.Message = nil, "", ""
		targets := f.orphaning()
		for _, t := range a.Spec.Targets {
			if _, exists := targets[t.Key]; t.Phase == workload.Removing && (f.reportOf(id, t.Key) == nil || !exists) {
				continue
			}
			next.Targets = append(next.Targets, workload.AssignedTarget{Key: t.Key, Location: t.Location, Phase: workload.Removing, Reason: workload.DeletedReason})
		}
		if len(next.Targets) > 0 {
			return f.assign(ctx, id, w, a, next)
		}
	}
	if left, err := f.unheard(ctx, id); left || err != nil {
		return err // a report that is deleted wakes the task
	}
	if err := f.undecide(ctx, a); err != nil {
		return err
	}
	return f.finalize(ctx, id, w, false)
}

// clear deletes what the server knows about an object that does not exist any more, such as one whose
// finalizers a user removed. The engines remove their parts, and then their reports.
func (f *fleet) clear(ctx context.Context, k *kind, id engine.ID, a *workload.Assignment) error {
	if a == nil && len(f.reports.By(byTask, id.Task().String())) == 0 {
		return nil
	}
	if w, err := f.live(ctx, k, id); w != nil || err != nil {
		return err // the cache has it soon
	}
	if _, err := f.unheard(ctx, id); err != nil {
		return err
	}
	return f.undecide(ctx, a)
}

// unheard deletes the reports about an object of targets that do not exist any more. It reports whether
// others are left: they have a copy of the object.
func (f *fleet) unheard(ctx context.Context, id engine.ID) (left bool, err error) {
	targets := f.orphaning()
	for _, r := range f.reportsOf(id) {
		if _, exists := targets[r.Spec.Key]; exists {
			left = true
			continue
		}
		if err := f.report(ctx, id, r.Spec.Key, nil); err != nil {
			return false, err
		}
	}
	return left, nil
}

// undecide deletes an Assignment, if there is one.
func (f *fleet) undecide(ctx context.Context, a *workload.Assignment) error {
	if a == nil {
		return nil
	}
	in, err := f.assignmentsIn.In(a.Annotations[clusterAnnotation])
	if err != nil {
		return err
	}
	return ignoreGone(in.Namespace(a.Namespace).Delete(ctx, a.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &a.UID}}))
}
