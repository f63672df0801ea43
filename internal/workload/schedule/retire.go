package schedule

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/consumers"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/profile"
)

// A compute workspace that is being deleted takes the copies of all workloads with it. The engines remove them while
// the server can still tell them to. Volume claims stay with their data: nobody but their users may delete these.

const computeDeleted = "the compute workspace that ran it is being deleted or was deleted; bind another one"

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

// Retiring reports whether [Scheduler.Retire] was called.
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
	if a != nil {
		if next := s.vacated(k, id, a); !stored(a) || !sameSpec(a.Spec, next) {
			return s.assign(ctx, id, w, a, next)
		}
	}
	if left, err := s.unheard(ctx, id); left || err != nil {
		return err // a report that is deleted wakes the task
	}
	if a != nil {
		// A workspace that refuses the status, as with a webhook, does not hold up the deletion of another one.
		if err := s.options.Say(ctx, id.Task()); err != nil && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
			return err
		}
	}
	return s.release(ctx, k, id, w, a)
}

// vacated returns the last decision about an object: the targets that still have a copy remove it.
func (s *Scheduler) vacated(k *consumers.Kind, id engine.ID, a *workload.Assignment) workload.AssignmentSpec {
	next := *a.Spec.DeepCopy()
	next.Targets, next.Reason, next.Message = nil, workload.ComputeDeleted, computeDeleted
	targets := s.orphaning()
	for _, t := range a.Spec.Targets {
		orphans, exists := targets[t.Key]
		if !exists || t.Phase == workload.Removing && s.consumers.Report(id, t.Key) == nil {
			continue
		}
		t.Phase, t.Replicas, t.Reason = workload.Removing, nil, workload.DeletedReason
		if orphans || k.Class == profile.Volume {
			t.Reason = workload.Orphaned
		}
		next.Targets = append(next.Targets, t)
	}
	return next
}
