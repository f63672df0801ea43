package schedule

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/consumers"
	"github.com/unforked/kcp/internal/workload/engine"
)

// Without a SyncTarget there is no fleet, also after a restart. So the last SyncTarget of a compute workspace takes
// the Assignments and finalizers of the consumers with it: nobody else would remove them.

// Dissolve makes the scheduler remove all Assignments and finalizers, and place nothing any more. It reports whether
// none is left.
func (s *Scheduler) Dissolve() bool {
	s.mu.Lock()
	wake := s.wake
	s.ending = true
	s.mu.Unlock()
	tasks, sure := s.consumers.Placed()
	if wake != nil {
		for _, task := range tasks {
			wake(task)
		}
	}
	return sure && len(tasks) == 0
}

// Resume ends what [Scheduler.Dissolve] or [Scheduler.Lose] began: there is a SyncTarget again. It reports whether
// objects are placed again because of that, which they are only while the loops run.
func (s *Scheduler) Resume() bool {
	s.mu.Lock()
	was, wake := s.ending, s.wake
	s.ending, s.lost = false, false
	s.mu.Unlock()
	if !was || wake == nil {
		return false
	}
	s.consumers.Each("*", wake)
	return true
}

// Lose makes a scheduler without the export of its compute workspace decide nothing: it reaches no consumer. It
// reports whether the scheduler had it before.
func (s *Scheduler) Lose() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.lost
	s.ending, s.lost = true, true
	return !was
}

// Dissolving reports whether nothing is placed any more. A scheduler that is lost cannot remove anything either.
func (s *Scheduler) Dissolving() (ending, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending, s.lost
}

// release removes the reports, the Assignment and the finalizer of an object. K is nil if its kind has no profile any
// more, and w is nil if it does not exist.
func (s *Scheduler) release(ctx context.Context, k *consumers.Kind, id engine.ID, w *unstructured.Unstructured, a *workload.Assignment) error {
	for _, r := range s.consumers.ReportsOf(id) {
		if err := s.consumers.SaveReport(ctx, id, r.Spec.Key, nil); err != nil {
			return err
		}
	}
	if err := s.consumers.DeleteAssignment(ctx, a); err != nil || k == nil || w == nil {
		return err
	}
	return s.consumers.Finalize(ctx, id, w, false)
}
