package schedule

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/place"
)

const (
	// remembered is how long a target counts as one that refuses after it has said so.
	remembered = time.Minute
	// mostRefusals is the number of refusals above which those that are over are forgotten.
	mostRefusals = 1024
)

// A refusal is a target that creates no object for a workspace, or none of a kind.
type refusal struct {
	cluster kcp.ClusterName
	target  string
	kind    schema.GroupResource // of what the target does not serve; empty if the target is full
}

// word returns what the refusal is to a decision.
func (r refusal) word() place.Refusal {
	if r.kind.Empty() {
		return place.Full
	}
	return place.NotServed
}

// said says when a target refused, and which workload was sent there since.
type said struct {
	at time.Time
	by engine.ID // that finds out whether it still refuses; empty if none does
}

// refusals are what targets have said lately. A part that leaves a target takes its report along, and would come
// back. The zero value is ready for use.
type refusals struct {
	mu      sync.Mutex
	all     map[refusal]said // guarded by mu
	sweepAt int              // the number of refusals at which those that are over are forgotten; guarded by mu
}

// add remembers a refusal that a workload has met, unless another one finds out whether it still holds.
func (r *refusals) add(of refusal, id engine.ID, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, known := r.all[of]; known && s.by != (engine.ID{}) && s.by != id && now.Sub(s.at) < remembered {
		return
	}
	if r.all == nil {
		r.all = map[refusal]said{}
	}
	if len(r.all) >= max(r.sweepAt, mostRefusals) {
		maps.DeleteFunc(r.all, func(_ refusal, s said) bool { return now.Sub(s.at) >= remembered })
		r.sweepAt = 2 * len(r.all)
	}
	r.all[of] = said{at: now}
}

// try says that a workload begins at a target that had refused. Others wait for the outcome.
func (r *refusals) try(of refusal, id engine.ID, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.all[of]; known {
		r.all[of] = said{now, id}
	}
}

// accepted says that a target has created a workload. The refusal is over if this was the workload that tried it.
func (r *refusals) accepted(of refusal, id engine.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, known := r.all[of]; known && s.by == id {
		delete(r.all, of)
	}
}

// mark marks the targets that refuse a workload of a kind.
func (r *refusals) mark(cluster kcp.ClusterName, kind schema.GroupResource, targets []place.Target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.all) == 0 {
		return
	}
	for i := range targets {
		t := &targets[i]
		for _, of := range []refusal{{cluster, t.Key, kind}, {cluster: cluster, target: t.Key}} {
			if s, known := r.all[of]; known && s.at.Add(remembered).After(t.RefusesUntil) {
				t.Refuses, t.RefusesUntil = of.word(), s.at.Add(remembered)
			}
		}
	}
}

// learn remembers what the targets of a workload report, for others, and at which targets the workload finds out whether
// they still refuse.
func (s *Scheduler) learn(id engine.ID, snap place.Snapshot, d place.Decision) {
	active := map[string]bool{}
	for _, p := range snap.Parts {
		full, unserved := refusal{cluster: id.Key.Cluster, target: p.Key}, refusal{id.Key.Cluster, p.Key, id.GroupResource}
		active[p.Key] = p.Phase == workload.Active
		switch {
		case p.Refused == place.Full:
			s.refused.add(full, id, snap.Now)
		case p.Refused == place.NotServed:
			s.refused.add(unserved, id, snap.Now)
		case p.Applied:
			s.refused.accepted(full, id)
			s.refused.accepted(unserved, id)
		}
	}
	for _, t := range d.Targets {
		if t.Phase == workload.Active && !active[t.Key] {
			s.refused.try(refusal{cluster: id.Key.Cluster, target: t.Key}, id, snap.Now)
			s.refused.try(refusal{id.Key.Cluster, t.Key, id.GroupResource}, id, snap.Now)
		}
	}
}

// refusalOf returns why a target has not created the object of a report. It is empty if the target may have one, or if
// it is not known whether the target accepts a generation of the workload.
func refusalOf(r *workload.TargetStatusSpec, generation int64) place.Refusal {
	switch {
	case r.TargetGeneration != 0:
		return ""
	case r.Reason == workload.Full:
		return place.Full
	case r.RefusedGeneration == 0: // the agent does not say so
		return ""
	case r.Reason == workload.NotServed:
		return place.NotServed
	case r.RefusedGeneration == generation && slices.Contains([]string{"Invalid", "BadRequest", "Forbidden"}, r.Reason):
		return place.Rejected
	}
	return ""
}

// rejected returns the targets that did not accept the present generation of a workload. Before is what was
// known of it.
func rejected(w *unstructured.Unstructured, before *workload.Assignment, snap place.Snapshot) *workload.Rejections {
	all := &workload.Rejections{Generation: w.GetGeneration()}
	if before != nil && before.Spec.Rejections != nil && before.Spec.Rejections.Generation == all.Generation {
		all.Keys = slices.DeleteFunc(slices.Clone(before.Spec.Rejections.Keys), func(key string) bool {
			return !slices.ContainsFunc(snap.Targets, func(t place.Target) bool { return t.Key == key }) ||
				slices.ContainsFunc(snap.Parts, func(p place.Part) bool { return p.Key == key && p.Applied })
		})
	}
	for _, p := range snap.Parts {
		if p.Refused == place.Rejected && len(all.Keys) < workload.MaxRejections && !slices.Contains(all.Keys, p.Key) {
			all.Keys = append(all.Keys, p.Key)
		}
	}
	if len(all.Keys) == 0 {
		return nil
	}
	return all
}
