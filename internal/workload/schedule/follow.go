package schedule

import (
	"cmp"
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/consumers"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/profile"
)

// spanLoop makes the scheduler look at the Services and others that follow if the targets of their namespace change.
// Without it, each change of a workload would concern all of them.
func (s *Scheduler) spanLoop() kcp.Loop {
	changes := s.consumers.Assignments.Wakes(func(a *workload.Assignment) []kcp.Key { return s.spans.change(kcp.KeyOf(a)) })
	return kcp.Loop{Name: "workload-spans", Do: s.respan, On: []kcp.Source{
		{Ready: s.consumers.Settled()},
		{Ready: changes.Ready, Subscribe: func(wake func(kcp.Key)) func() {
			defer s.spans.follow()
			return changes.Subscribe(wake)
		}},
	}}
}

// respan wakes the objects that follow workloads of a namespace.
func (s *Scheduler) respan(_ context.Context, at kcp.Key) error {
	s.mu.Lock()
	wake := s.wake
	s.mu.Unlock()
	if wake == nil {
		return nil
	}
	for _, k := range s.consumers.Kinds() {
		if k.Class != workload.Follows {
			continue
		}
		for _, key := range k.In(at) {
			wake(engine.ID{GroupResource: k.GroupResource(), Key: key}.Task())
		}
	}
	return nil
}

// spanned returns the targets that have a workload of a namespace.
func (s *Scheduler) spanned(at kcp.Key) []span {
	all, changed := s.spans.get(at)
	for _, of := range changed {
		_ = s.respan(context.Background(), of) // it never fails
	}
	return all
}

// noWorkload is the reason of an object that follows, in a namespace without workloads.
const noWorkload = "NoWorkload"

// decideFollower places an object at all targets that have a workload of its namespace.
func (s *Scheduler) decideFollower(ctx context.Context, id engine.ID, w *unstructured.Unstructured, a *workload.Assignment, p *scheduling.Placement) error {
	if err := s.place(ctx, id, w, a, p); err != nil {
		return err
	}
	if _, waits := s.expects(id.Key, s.spanned(id.Key)); waits {
		return kcp.After(expected)
	}
	return nil
}

// place writes the decision about an object that follows.
func (s *Scheduler) place(ctx context.Context, id engine.ID, w *unstructured.Unstructured, a *workload.Assignment, p *scheduling.Placement) error {
	next, has := s.following(id, w, a, p)
	if !has {
		return nil
	}
	return s.settle(ctx, id, w, a, next)
}

// following returns the decision about an object that follows. It reports false if there is none to make.
func (s *Scheduler) following(id engine.ID, w *unstructured.Unstructured, a *workload.Assignment, p *scheduling.Placement) (next workload.AssignmentSpec, has bool) {
	spans, _ := s.expects(id.Key, s.spanned(id.Key))
	dead := s.dead()
	spans = slices.DeleteFunc(slices.Clone(spans), func(of span) bool { return dead[of.key] })
	if a == nil && len(spans) == 0 {
		return next, false
	}
	next = workload.AssignmentSpec{Workload: engine.Reference(id.GroupResource, w)}
	if len(spans) == 0 {
		next.Reason, next.Message = noWorkload, "no workload of the namespace is placed"
	}
	policies(p, &next)
	for _, of := range spans {
		next.Targets = append(next.Targets, workload.AssignedTarget{Key: of.key, Location: of.location, Phase: workload.Active})
	}
	s.removeOthers(id, a, &next)
	return next, true
}

// removeOthers adds the parts of targets that a decision has no part for: they are removed.
func (s *Scheduler) removeOthers(id engine.ID, a *workload.Assignment, next *workload.AssignmentSpec) {
	if a == nil {
		return
	}
	orphans, dead := s.orphaning(), s.dead()
	for _, t := range a.Spec.Targets {
		release, exists := orphans[t.Key]
		// If a target that was given up comes back, it keeps its data.
		release = release || id.GroupResource == profile.Volumes().GroupResource() && (dead[t.Key] || t.Reason == workload.Orphaned)
		// Orphaned workloads of the namespace still need the objects that followed them.
		release = release || next.Reason == noWorkload && next.Deletion == string(scheduling.Orphan)
		if consumers.PartAt(&workload.Assignment{Spec: *next}, t.Key) != nil || t.Phase == workload.Removing && (s.consumers.Report(id, t.Key) == nil || !exists) {
			continue
		}
		part := workload.AssignedTarget{Key: t.Key, Location: t.Location, Phase: workload.Removing, Reason: "Moved"}
		if release {
			part.Reason = workload.Orphaned
		}
		next.Targets = append(next.Targets, part)
	}
	slices.SortFunc(next.Targets, func(a, b workload.AssignedTarget) int { return cmp.Compare(a.Key, b.Key) })
}

// orphaning returns the keys of all targets that the server has or waits for, and whether what they have stays in the
// physical cluster.
func (s *Scheduler) orphaning() map[string]bool {
	all, retiring := map[string]bool{}, s.Retiring()
	for _, w := range s.options.Inventory.All() {
		if !w.Abandoned {
			all[w.Key] = w.Orphans || retiring && w.Keeps
		}
	}
	return all
}

// dead returns the targets that are deleted and do not answer: their owner says that they are gone, with the data
// that they had.
func (s *Scheduler) dead() map[string]bool {
	all := map[string]bool{}
	for _, w := range s.options.Inventory.All() {
		all[w.Key] = w.Deleting && !w.Unreachable.IsZero()
	}
	return all
}

// decideVolume places a volume claim at the target of the first workload that uses it. It stays there, unless
// the target is dead.
func (s *Scheduler) decideVolume(ctx context.Context, id engine.ID, w *unstructured.Unstructured, a *workload.Assignment, p *scheduling.Placement) error {
	next, has := s.volume(id, w, a, p)
	if !has {
		return nil
	}
	return s.settle(ctx, id, w, a, next)
}

// volume returns the decision about a volume claim. It reports false if there is none to make.
func (s *Scheduler) volume(id engine.ID, w *unstructured.Unstructured, a *workload.Assignment, p *scheduling.Placement) (next workload.AssignmentSpec, has bool) {
	targets, dead := s.orphaning(), s.dead()
	if a != nil {
		i := slices.IndexFunc(a.Spec.Targets, func(t workload.AssignedTarget) bool {
			orphans, exists := targets[t.Key]
			return exists && !orphans && !dead[t.Key] && t.Phase != workload.Removing
		})
		switch {
		case i >= 0 && stored(a):
			return next, false
		case i >= 0:
			next = *a.Spec.DeepCopy()
			policies(p, &next)
			return next, true
		}
	}
	next = workload.AssignmentSpec{Workload: engine.Reference(id.GroupResource, w), Reason: "WaitForFirstConsumer", Message: "no workload that uses it is placed"}
	policies(p, &next)
	users := s.consumers.Users(id)
	slices.SortFunc(users, func(a, b engine.ID) int { return cmp.Compare(a.Task().Name, b.Task().Name) })
	for _, user := range users {
		of := s.consumers.Assignment(user)
		if of == nil {
			continue
		}
		if i := slices.IndexFunc(of.Spec.Targets, func(t workload.AssignedTarget) bool { return t.Phase == workload.Active && !dead[t.Key] }); i >= 0 {
			t := of.Spec.Targets[i]
			next.Reason, next.Message = "", ""
			next.Targets = []workload.AssignedTarget{{Key: t.Key, Location: t.Location, Phase: workload.Active}}
			break
		}
	}
	if a == nil && len(next.Targets) == 0 {
		return next, false
	}
	s.removeOthers(id, a, &next)
	return next, true
}

// volumeAt returns the target that has the data of a workload, and whether it has any.
func (s *Scheduler) volumeAt(id engine.ID, k *consumers.Kind, w *unstructured.Unstructured, a *workload.Assignment) (target string, has bool) {
	targets := s.orphaning()
	if k.HasClaims(w) {
		has = true
		if a != nil {
			for _, t := range a.Spec.Targets {
				if _, exists := targets[t.Key]; exists && t.Phase != workload.Removing {
					return t.Key, true
				}
			}
		}
	}
	for _, ref := range k.RefersTo(w) {
		if ref.GroupResource != profile.Volumes().GroupResource() {
			continue
		}
		has = true
		if of := s.decisionOf(ref); of != nil {
			for _, t := range of.Spec.Targets {
				if _, exists := targets[t.Key]; exists && t.Phase != workload.Removing {
					return t.Key, true
				}
			}
		}
	}
	return "", has
}
