package schedule

import (
	"cmp"
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/consumers"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/profile"
)

// A compute workspace that is being deleted, or whose export is, takes the copies of all workloads with it. The engines
// remove them while the server can still tell them to. Volume claims stay with their data: nobody but their users may
// delete these.

const computeDeleted = "the compute workspace that ran it, or its export, is being deleted or was deleted; bind another one"

// Retire makes the scheduler remove all objects from all targets, and place nothing any more.
func (s *Scheduler) Retire() {
	s.mu.Lock()
	was, wake := s.retiring, s.wake
	s.retiring = true
	s.mu.Unlock()
	if !was && wake != nil {
		s.consumers.Each("*", wake)
	}
}

// Place ends what [Scheduler.Retire] began: there is another export.
func (s *Scheduler) Place() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retiring = false
}

// Retiring reports whether [Scheduler.Retire] was called, and [Scheduler.Place] was not.
func (s *Scheduler) Retiring() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.retiring
}

// vacate removes an object from all targets, says so in its status, and then removes the Assignment and the finalizer.
// Only the targets that the server waits for count.
func (s *Scheduler) vacate(ctx context.Context, k *consumers.Kind, id engine.ID, w *unstructured.Unstructured, a *workload.Assignment) error {
	if a != nil && a.Spec.Workload.UID != string(w.GetUID()) {
		return s.consumers.DeleteAssignment(ctx, a) // of a workload of that name which was deleted
	}
	if a == nil {
		a = s.recalled(k, id, w)
	}
	waits := false
	if a != nil {
		var next workload.AssignmentSpec
		if next, waits = s.vacated(k, id, a); !stored(a) || !sameSpec(a.Spec, next) {
			return s.assign(ctx, id, w, a, next)
		}
	}
	if left, err := s.unheard(ctx, id); err != nil || waits {
		return cmp.Or(err, kcp.After(later))
	} else if left {
		return nil // a report that is deleted wakes the task
	}
	if a != nil {
		if err := s.options.Say(ctx, id.Task()); err != nil && !refused(err) {
			return err
		}
	}
	return s.release(ctx, k, id, w, a)
}

// later is the time after which an object that follows looks again whether workloads are left. The loop of spans wakes
// it earlier.
const later = 10 * soon

// refused reports whether a consumer refuses a status, as with a webhook, or its webhook fails. The copies are gone, so
// this does not hold up the deletion of the compute workspace.
func refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsInternalError(err)
}

// vacated returns the last decision about an object: the targets that still have a copy remove it. An object that
// follows waits for the workloads of its namespace, such as a NetworkPolicy for the pods that it protects.
func (s *Scheduler) vacated(k *consumers.Kind, id engine.ID, a *workload.Assignment) (next workload.AssignmentSpec, waits bool) {
	next = *a.Spec.DeepCopy()
	next.Targets, next.Reason, next.Message = nil, workload.ComputeDeleted, computeDeleted
	targets := s.orphaning()
	var spans []span
	if k.Class == workload.Follows {
		spans = s.spanned(id.Key)
	}
	for _, t := range a.Spec.Targets {
		orphans, exists := targets[t.Key]
		if !exists || t.Phase == workload.Removing && s.consumers.Report(id, t.Key) == nil {
			continue
		}
		if t.Phase != workload.Removing && slices.ContainsFunc(spans, func(of span) bool { return of.key == t.Key }) {
			next.Targets, waits = append(next.Targets, t), true
			continue
		}
		t.Phase, t.Replicas, t.Reason = workload.Removing, nil, workload.DeletedReason
		if orphans || k.Class == profile.Volume {
			t.Reason = workload.Orphaned
		}
		next.Targets = append(next.Targets, t)
	}
	return next, waits
}
