package schedule

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/utils/ptr"

	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/consumers"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/place"
	"github.com/unforked/kcp/internal/workload/profile"
)

// A Subject is what a decision is about.
type Subject struct {
	*consumers.Kind
	ID         engine.ID
	Object     *unstructured.Unstructured
	Assignment *workload.Assignment // the last decision; nil if there is none
}

// decided returns the decision about a workload, with the targets that rejected it.
func (s *Scheduler) decided(ctx context.Context, of Subject, p *scheduling.Placement) (place.Decision, *workload.Rejections, error) {
	snap, err := s.Snapshot(ctx, of, p)
	if err != nil {
		return place.Decision{}, nil, err
	}
	d := s.paced(of.ID.Task(), snap)
	s.learn(of.ID, snap, d)
	return d, rejected(of.Object, of.Assignment, snap), nil
}

// Snapshot returns what a decision about a workload by a Placement depends on.
func (s *Scheduler) Snapshot(ctx context.Context, of Subject, p *scheduling.Placement) (place.Snapshot, error) {
	k, id, w, a := of.Kind, of.ID, of.Object, of.Assignment
	snap := place.Snapshot{ID: id.Key.String(), Replicas: k.Wants(w), Policy: policyOf(p), Now: time.Now()}
	snap.Policy.Exclusive, snap.Policy.Everywhere = k.Class == workload.Singleton, k.Class == workload.Everywhere
	snap.Policy.Finished = k.Finished(w)
	snap.Policy.StopsWithin = s.stopsWithin(w, a)
	if at, has := s.volumeAt(id, k, w, a); has && !snap.Policy.Everywhere {
		snap.Policy.Only = at
		snap.Policy.Strategy = scheduling.Single
	}
	snap.Targets, snap.Hold, snap.Known = s.options.Inventory.For(p)
	if a != nil {
		if err := s.addParts(ctx, of, &snap); err != nil {
			return snap, err
		}
	}
	s.refused.mark(id.Key.Cluster, id.GroupResource, snap.Targets)
	if of := rejected(w, a, snap); of != nil {
		for i := range snap.Targets {
			if t := &snap.Targets[i]; slices.Contains(of.Keys, t.Key) {
				t.Refuses, t.RefusesUntil = place.Rejected, time.Time{}
			}
		}
	}
	return snap, s.checkLeases(ctx, &snap)
}

// addParts adds what is known about the parts of the last decision.
func (s *Scheduler) addParts(ctx context.Context, of Subject, snap *place.Snapshot) error {
	k, id, w, a := of.Kind, of.ID, of.Object, of.Assignment
	orphans := s.orphaning()
	for _, t := range a.Spec.Targets {
		part, err := s.partOf(id, w, t, snap.Targets)
		if err != nil {
			return err
		}
		part.Orphaned = orphans[t.Key]
		if snap.Policy.Exclusive && t.Phase != workload.Removing {
			snap.Policy.Needed = s.needed(k, w, part.Available)
		}
		if part.Gone && snap.Policy.Exclusive && t.Phase == workload.Removing {
			if part.Gone, err = s.silent(ctx, id, t.Key); err != nil {
				return err
			}
		}
		snap.Parts = append(snap.Parts, part)
	}
	return nil
}

// stopsWithin returns how long after the end of its lease an agent has stopped a workload, zero if one does not stop
// it. Only the reports of the agents count, because an agent that is cut off does not know of later changes.
func (s *Scheduler) stopsWithin(w *unstructured.Unstructured, a *workload.Assignment) (longest time.Duration) {
	if a == nil {
		return 0
	}
	id := engine.IDFor(w, a.Spec.Workload)
	for _, t := range a.Spec.Targets {
		r := s.consumers.Report(id, t.Key)
		switch {
		case r == nil || r.Spec.Workload.UID != string(w.GetUID()):
		case r.Spec.StopsWithinSeconds == nil:
			return 0
		default:
			longest = max(longest, time.Duration(*r.Spec.StopsWithinSeconds)*time.Second+s.options.Stop)
		}
	}
	return longest
}

// checkLeases reads the Leases of agents that shall have stopped their parts from the server, not from
// the cache, before the workload begins elsewhere.
func (s *Scheduler) checkLeases(ctx context.Context, snap *place.Snapshot) error {
	if s.options.Lapsed == nil || snap.Policy.StopsWithin == 0 {
		return nil
	}
	for i := range snap.Targets {
		t := &snap.Targets[i]
		leaves := slices.ContainsFunc(snap.Parts, func(p place.Part) bool { return p.Key == t.Key && p.Phase == workload.Removing })
		if t.LeaseEnd.IsZero() || !leaves {
			continue
		}
		ok, err := s.options.Lapsed(ctx, t.Key)
		if err != nil {
			return err
		}
		if !ok {
			t.LeaseEnd = time.Time{}
		}
	}
	return nil
}

// silent reports whether the server has no report of a target: an engine that begins says so first,
// and then looks whether it still may.
func (s *Scheduler) silent(ctx context.Context, id engine.ID, target string) (bool, error) {
	if _, exists := s.orphaning()[target]; !exists {
		return true, nil
	}
	return s.consumers.Silent(ctx, id, target)
}

// partOf returns what is known about the part of a target.
func (s *Scheduler) partOf(id engine.ID, w *unstructured.Unstructured, t workload.AssignedTarget, targets []place.Target) (place.Part, error) {
	p := place.Part{AssignedTarget: t}
	exists := slices.ContainsFunc(targets, func(of place.Target) bool { return of.Key == t.Key })
	r := s.consumers.Report(id, t.Key)
	if r == nil || r.Spec.Workload.UID != string(w.GetUID()) {
		p.Gone = true
		return p, nil
	}
	p.Refused, p.Message = refusalOf(&r.Spec, w.GetGeneration()), r.Spec.Message
	p.Gone = !exists // a target that does not exist confirms nothing
	p.Applied = r.Spec.Reason == "" && r.Spec.Observed && r.Spec.Generation == w.GetGeneration() && ptr.Equal(r.Spec.Replicas, t.Replicas)
	var status struct {
		AvailableReplicas int32 `json:"availableReplicas"`
		ReadyReplicas     int32 `json:"readyReplicas"`
	}
	if r.Spec.Reported != nil && json.Unmarshal(r.Spec.Reported.Raw, &status) == nil {
		if p.Available = status.AvailableReplicas; id.Group != profile.Deployments().Group {
			p.Available = max(status.AvailableReplicas, status.ReadyReplicas) // custom resources
		}
	}
	return p, nil
}

// Explain says in words why a workload is not scheduled. It names no target.
func Explain(d place.Decision) string {
	if d.Reason == "" {
		return ""
	}
	switch d.Reason {
	case place.Moving:
		return "it leaves a target before it begins elsewhere"
	case place.NotFenced:
		return "its target does not answer, so it may still run there; it begins elsewhere when the target answers and has stopped it, or when the owner of the physical clusters fences or removes the target"
	case place.TooMany:
		return fmt.Sprintf("a workload uses %d targets at most", place.MaxTargets)
	case place.Pinned:
		return "it stays where its data are"
	case place.Limited:
		return "its target does not answer; it leaves when it is its turn, because only so many workloads leave at a time"
	case place.Budget:
		return "a PodDisruptionBudget of the namespace does not let all its pods stop, which they do before they begin elsewhere"
	}
	var why []string
	for _, r := range slices.Sorted(maps.Keys(d.Refused)) {
		why = append(why, fmt.Sprintf("%d %s", d.Refused[r], r))
	}
	if len(why) == 0 {
		return "no target is registered in a Location that the Placement selects, or all have their maximum"
	}
	text := "targets that take no more replicas: " + strings.Join(why, ", ")
	if d.Message != "" {
		text += "; one says: " + d.Message
	}
	return text
}

// policyOf returns what a Placement says about the targets of its workloads.
func policyOf(p *scheduling.Placement) place.Policy {
	s := p.Spec.Strategy
	of := place.Policy{Strategy: s.Type, Tolerations: p.Spec.Tolerations}
	of.Unfenced = p.Spec.Failover.RequireFencing != nil && !*p.Spec.Failover.RequireFencing
	if s.Divide != nil {
		of.Min, of.Max = ptr.Deref(s.Divide.MinPerTarget, 0), ptr.Deref(s.Divide.MaxPerTarget, 0)
	}
	if s.Targets != nil {
		of.Targets = int(ptr.Deref(s.Targets.Max, 0))
	}
	return of
}
