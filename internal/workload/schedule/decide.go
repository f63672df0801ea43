package schedule

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/place"
	"github.com/unforked/kcp/internal/workload/profile"
)

// decide makes and writes the decision about an object.
func (s *Scheduler) decide(ctx context.Context, task kcp.Key) error {
	id := engine.IDOf(task)
	k, a := s.consumers.Kind(id.GroupResource), s.consumers.Assignment(id)
	switch ending, lost := s.Dissolving(); {
	case lost:
		return nil
	case ending:
		return s.release(ctx, k, id, s.consumers.Workload(id), a)
	case k == nil && s.Retiring():
		return s.release(ctx, nil, id, nil, a) // no engine knows the kind either
	case k == nil:
		return nil
	}
	w := k.Objects.Get(id.Key)
	switch {
	case w == nil:
		return s.clear(ctx, k, id, a)
	case w.GetDeletionTimestamp() != nil:
		return s.bury(ctx, id, w, a)
	case s.Retiring():
		return s.vacate(ctx, k, id, w, a)
	}
	if a != nil && a.Spec.Workload.UID != string(w.GetUID()) {
		return s.consumers.DeleteAssignment(ctx, a) // of a workload of that name which was deleted
	}
	if a == nil {
		a = s.recalled(k, id, w)
	}
	if a == nil && (k.Leaving.Load() || k.IsRevision(w)) || k.Class == profile.Unplaced || k.Class == profile.Dependency || id.Key.Namespace == "" {
		return nil
	}
	p, err := s.consumers.PlacementOf(ctx, id.Key)
	if err != nil {
		return err
	}
	switch {
	case k.Class == workload.Follows:
		return s.decideFollower(ctx, id, w, a, p)
	case k.Class == profile.Volume:
		return s.decideVolume(ctx, id, w, a, p)
	}
	if after, ended, ok := k.Expires(w); ok {
		return s.expire(ctx, id, w, time.Until(ended.Add(after)))
	}
	return s.decideWorkload(ctx, Subject{k, id, w, a}, p)
}

// expire deletes a Job that ended, when its time has come. Its copies stay until then.
func (s *Scheduler) expire(ctx context.Context, id engine.ID, w *unstructured.Unstructured, left time.Duration) error {
	if left > 0 {
		return kcp.After(left)
	}
	return s.consumers.Delete(ctx, id, w)
}

func (s *Scheduler) decideWorkload(ctx context.Context, of Subject, p *scheduling.Placement) error {
	k, id, w, a := of.Kind, of.ID, of.Object, of.Assignment
	if p == nil && a == nil {
		return nil
	}
	next := workload.AssignmentSpec{Workload: engine.Reference(id.GroupResource, w), Replicas: k.Wants(w)}
	var again time.Duration
	switch {
	case p == nil || p.Spec.Suspend:
		// The parts stay as they are.
		if a == nil {
			return nil
		}
		next = *a.Spec.DeepCopy()
		if next.Reason, next.Message = place.NoPlacement, "no Placement of the workspace selects the namespace of the workload"; p != nil {
			next.Reason, next.Message = place.Suspended, fmt.Sprintf("Placement %q is suspended", p.Name)
		}
	case k.Misfit(w) != "":
		if a != nil {
			next.Targets = a.Spec.DeepCopy().Targets // nothing moves because of it
		}
		next.Placement, next.Reason, next.Message = p.Name, place.Misfit, k.Misfit(w)
		policies(p, &next)
	default:
		d, rejections, err := s.decided(ctx, of, p)
		if err != nil {
			return err
		}
		next.Rejections = rejections
		next.Placement, next.Targets, next.Reason, again = p.Name, d.Targets, d.Reason, d.Again
		next.Message = Explain(d)
		policies(p, &next)
		if p.Spec.Failover.LeaseFencing && k.Quiesce != nil {
			next.Fencing = workload.LeaseFencing
		}
		if err := s.policiesFirst(ctx, of, next, p); err != nil {
			return err
		}
	}
	if err := s.settle(ctx, id, w, a, next); err != nil {
		return err
	}
	if again > 0 {
		return kcp.After(again + soon)
	}
	return nil
}

// policies adds what a Placement, if there is one, says about existing objects and deletion.
func policies(p *scheduling.Placement, next *workload.AssignmentSpec) {
	if p != nil {
		next.Conflict, next.Deletion = string(p.Spec.Conflict), string(p.Spec.Deletion)
	}
}

// settle writes a decision.
func (s *Scheduler) settle(ctx context.Context, id engine.ID, w *unstructured.Unstructured, a *workload.Assignment, next workload.AssignmentSpec) error {
	if err := s.assign(ctx, id, w, a, next); err != nil {
		return err
	}
	return s.forget(ctx, id, a, next)
}

// forget deletes the reports of targets that were deleted before they could.
func (s *Scheduler) forget(ctx context.Context, id engine.ID, a *workload.Assignment, next workload.AssignmentSpec) error {
	if a == nil {
		return nil
	}
	for _, old := range a.Spec.Targets {
		if s.consumers.Report(id, old.Key) == nil || slices.ContainsFunc(next.Targets, func(t workload.AssignedTarget) bool { return t.Key == old.Key }) {
			continue
		}
		if err := s.consumers.SaveReport(ctx, id, old.Key, nil); err != nil {
			return err
		}
	}
	return nil
}

// assign writes the decision.
func (s *Scheduler) assign(ctx context.Context, id engine.ID, w *unstructured.Unstructured, a *workload.Assignment, next workload.AssignmentSpec) error {
	if stored(a) && sameSpec(a.Spec, next) && len(a.OwnerReferences) == 0 {
		return nil
	}
	if err := s.consumers.Finalize(ctx, id, w, true); err != nil {
		return err
	}
	if stored(a) {
		// a may be old: then the update conflicts, and the next decision sees the new one.
		return s.consumers.UpdateAssignment(ctx, a, next)
	}
	err := s.consumers.CreateAssignment(ctx, id, next)
	if apierrors.IsAlreadyExists(err) {
		return kcp.After(soon) // the cache has it soon
	}
	return err
}

func sameSpec(a, b workload.AssignmentSpec) bool {
	text, err := json.Marshal(a)
	other, otherErr := json.Marshal(b)
	return err == nil && otherErr == nil && string(text) == string(other)
}
