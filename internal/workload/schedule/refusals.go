package schedule

import (
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
	at    time.Time
	tries engine.ID
}

// refusals are what targets have said lately. A part that leaves a target takes its report along, and would come
// back. The zero value is ready for use.
type refusals struct {
	mu  sync.Mutex
	all map[refusal]said // guarded by mu
}

// add remembers a refusal.
func (r *refusals) add(of refusal, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.all) > mostRefusals || r.all == nil {
		recent := map[refusal]said{}
		for of, s := range r.all {
			if now.Sub(s.at) < remembered {
				recent[of] = s
			}
		}
		r.all = recent
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
	if s, known := r.all[of]; known && s.tries == id {
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

// learn remembers what the targets of a workload report, for others.
func (s *Scheduler) learn(id engine.ID, p place.Part, now time.Time) {
	full, unserved := refusal{cluster: id.Key.Cluster, target: p.Key}, refusal{id.Key.Cluster, p.Key, id.GroupResource}
	switch {
	case p.Refused == place.Full:
		s.refused.add(full, now)
	case p.Refused == place.NotServed:
		s.refused.add(unserved, now)
	case p.Applied:
		s.refused.accepted(full, id)
		s.refused.accepted(unserved, id)
	}
}

// tries says of which targets a decision finds out whether they still refuse.
func (s *Scheduler) tries(id engine.ID, snap place.Snapshot, d place.Decision) {
	for _, t := range snap.Targets {
		begins := func(p workload.AssignedTarget) bool { return p.Key == t.Key && p.Phase == workload.Active }
		if t.Refuses == "" || !slices.ContainsFunc(d.Targets, begins) ||
			slices.ContainsFunc(snap.Parts, func(p place.Part) bool { return begins(p.AssignedTarget) }) {
			continue
		}
		for _, kind := range []schema.GroupResource{{}, id.GroupResource} {
			s.refused.try(refusal{id.Key.Cluster, t.Key, kind}, id, snap.Now)
		}
	}
}

// refusalOf returns why a target has not created the object of a report. It is empty if there may be one, or if it is not known
// whether the target accepts a generation of the workload.
func refusalOf(r *workload.TargetStatusSpec, generation int64) place.Refusal {
	switch {
	case r.TargetGeneration != 0:
		return ""
	case r.Reason == workload.Full:
		return place.Full
	case r.Reason == workload.NotServed:
		return place.NotServed
	case r.RefusedGeneration != generation:
		return ""
	}
	if slices.Contains([]string{"Invalid", "BadRequest", "Forbidden"}, r.Reason) {
		return place.Rejected
	}
	return ""
}

// rejected returns the targets that did not accept the present generation of a workload. Before is what was
// known of it.
func rejected(w *unstructured.Unstructured, before *workload.Assignment, parts []place.Part) *workload.Rejections {
	all := &workload.Rejections{Generation: w.GetGeneration()}
	if before != nil && before.Spec.Rejections != nil && before.Spec.Rejections.Generation == all.Generation {
		all.Keys = slices.Clone(before.Spec.Rejections.Keys)
	}
	for _, p := range parts {
		if p.Refused == place.Rejected && len(all.Keys) < workload.MaxRejections && !slices.Contains(all.Keys, p.Key) {
			all.Keys = append(all.Keys, p.Key)
		}
	}
	if len(all.Keys) == 0 {
		return nil
	}
	return all
}
