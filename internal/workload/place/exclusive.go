package place

import (
	"cmp"
	"slices"
	"time"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// budgetAgain is the time between two looks at a budget that is used up.
const budgetAgain = 10 * time.Second

// one decides about a workload that one target at a time has. It leaves its target only if another
// takes it, and begins there only after it has left. A target that does not answer keeps it until it
// is known that the workload is stopped there.
func (d *decider) one() {
	live, busy := d.present()
	switch {
	case live == nil && busy:
		d.out.Reason = Moving
	case live == nil && d.Policy.Finished:
	case live == nil:
		d.begin()
	default:
		d.stay(*live, busy)
	}
}

// present returns the part that is live, and adds those that leave to the decision. Busy is true if
// one of them may still run.
func (d *decider) present() (live *Part, busy bool) {
	parts := slices.Clone(d.Parts)
	slices.SortStableFunc(parts, func(a, b Part) int { return first(a.Phase == workload.Active, b.Phase == workload.Active) })
	for _, p := range parts {
		switch {
		case p.Gone && (p.Phase == workload.Removing || !d.exists(p.Key)):
		case p.Phase != workload.Removing && live == nil:
			live = &p
		default:
			busy = busy || !d.stopped(p.Key)
			d.release(p, cmp.Or(p.Reason, string(Moved)))
		}
	}
	return live, busy
}

// stopped reports whether the workload does not run at a target that does not answer: an operator says
// so, the agent there has stopped it by itself, or the Placement takes the risk.
func (d *decider) stopped(key string) bool {
	i := slices.IndexFunc(d.Targets, func(t Target) bool { return t.Key == key })
	if i < 0 || d.Targets[i].Unreachable.IsZero() {
		return false
	}
	t := d.Targets[i]
	switch {
	case t.Fenced:
		return true
	case d.Policy.Unfenced:
		wait, ends := d.patience(t)
		return ends && !d.pending(wait)
	}
	return d.Policy.StopsWithin > 0 && !t.LeaseEnd.IsZero() && !d.pending(t.LeaseEnd.Add(d.Policy.StopsWithin).Sub(d.Now))
}

// pending reports whether a time is still to come, and makes the decision due again then.
func (d *decider) pending(wait time.Duration) bool {
	if wait > 0 {
		d.again(wait)
	}
	return wait > 0
}

func (d *decider) exists(key string) bool {
	return slices.ContainsFunc(d.Targets, func(t Target) bool { return t.Key == key })
}

// release removes a part from its target.
func (d *decider) release(p Part, why string) {
	next := p.AssignedTarget
	next.Phase, next.Replicas, next.Reason = workload.Removing, nil, why
	if p.Orphaned {
		next.Reason = workload.Orphaned
	}
	d.out.Targets = append(d.out.Targets, next)
}

// begin starts the workload at the best target that takes it.
func (d *decider) begin() {
	best := d.best("")
	if best == nil {
		d.out.Reason = NoTarget
		return
	}
	d.out.Targets = append(d.out.Targets, workload.AssignedTarget{Key: best.Key, Location: best.Location, Phase: workload.Active, Replicas: d.Replicas})
}

// best returns the best target that takes the workload, other than one.
func (d *decider) best(but string) (best *judged) {
	for i := range d.judged {
		j := &d.judged[i]
		if j.verdict != takes || j.Key == but {
			continue
		}
		if best == nil || rank(d.ID, j.Key) > rank(d.ID, best.Key) {
			best = j
		}
	}
	return best
}

// stay keeps the workload at its target, or begins to move it.
func (d *decider) stay(live Part, busy bool) {
	i := slices.IndexFunc(d.judged, func(j judged) bool { return j.Key == live.Key })
	next := live.AssignedTarget
	next.Phase, next.Reason, next.Replicas = workload.Active, "", d.Replicas
	if busy { // what runs elsewhere still is on its way out
		d.out.Reason = Moving
	}
	if i >= 0 && d.judged[i].verdict != gives {
		next.Location = d.judged[i].Location
		d.out.Targets = append(d.out.Targets, next)
		return
	}
	next.Phase, next.Reason = workload.Evicting, string(d.why(live.Key))
	dead := i >= 0 && d.judged[i].Deleting && !d.answers(live.Key) // its owner says so
	switch {
	case dead:
		d.out.Reason = Moving
		d.release(live, next.Reason)
		return
	case d.Policy.Only == live.Key:
		d.out.Reason = Pinned
	case !d.answers(live.Key) && !d.stopped(live.Key):
		d.out.Reason = NotFenced
	case !d.Policy.Finished && d.best(live.Key) == nil:
		d.out.Reason = NoTarget
	case d.Policy.Needed && d.answers(live.Key) && !live.Orphaned:
		d.out.Reason = Budget
		d.again(budgetAgain)
	case i >= 0 && d.judged[i].Paced:
		d.out.Reason = Limited
	default:
		if d.out.Reason = Moving; d.Policy.Finished {
			d.out.Reason = ""
		}
		d.release(live, next.Reason)
		return
	}
	d.out.Targets = append(d.out.Targets, next)
}
