// Package place decides which targets run a workload, and how many replicas each. It is a
// pure function of a [Snapshot]. It hides how replicas are divided, and when a part may leave
// a target.
package place

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// MaxTargets is the maximum of targets that one workload uses. An Assignment has room for as many that
// it leaves.
const MaxTargets = 64

// A Snapshot is everything that a decision depends on.
type Snapshot struct {
	// ID identifies the workload. It breaks ties, so that workloads spread over equal targets.
	ID string
	// Replicas is what the workload wants. Nil means that it has no replicas.
	Replicas *int32
	// Policy is how the workload is placed.
	Policy Policy
	// Targets are all targets of the compute workspace.
	Targets []Target
	// Parts are those of the last decision.
	Parts []Part
	// Hold means that no target is given up because it is unreachable.
	Hold bool
	// Known is since when the server has known which targets answer, without a break. A target that did not answer
	// before counts as lost since then.
	Known time.Time
	// Now is the time of the decision.
	Now time.Time
}

// A Policy is how a Placement treats a workload.
type Policy struct {
	Strategy    scheduling.StrategyType
	Min, Max    int32 // replicas of one target; zero means no bound
	Targets     int   // the maximum of targets; zero means no bound
	Tolerations []corev1.Toleration
	// Exclusive means that one target at a time has the workload: it leaves one before another
	// begins.
	Exclusive bool
	// Everywhere means that parts replace no others: each target has its own.
	Everywhere bool
	// Only is the key of the one target that has the data of the workload. Empty means that any
	// may be used.
	Only string
	// Finished means that the workload has come to its end, and begins nowhere anew.
	Finished bool
	// Unfenced means that an exclusive workload may begin elsewhere even if it may still run at its
	// old target.
	Unfenced bool
	// Needed means that an exclusive workload may not stop as long as its target answers.
	Needed bool
	// StopsWithin is the maximum of the time between the end of an agent's lease and the end of the
	// workload there. Zero means that agents do not stop the workload.
	StopsWithin time.Duration
}

// A Target is a physical cluster.
type Target struct {
	Key string
	// Location through which the Placement selects the target. Empty if it does not.
	Location string
	// Ready is true once the agent of the target has reported, also while it is unreachable.
	Ready         bool
	Unschedulable bool
	// Unreachable is when the target stopped answering. Zero while it answers or is known to be
	// alive.
	Unreachable time.Time
	// AgentLost means that the agent does not report although the target is alive.
	AgentLost bool
	// Confirmed means that outside probes say that the target, which does not answer, is down.
	Confirmed bool
	// Fenced means that an operator says that nothing runs at the target, which does not answer.
	Fenced bool
	// LeaseEnd is when the lease of the agent of a target that does not answer had run out. Zero if
	// the agent stops nothing by itself.
	LeaseEnd time.Time
	// Cleaning means that the target was fenced, answers again, and has not yet removed what began
	// elsewhere.
	Cleaning bool
	// Domain is the failure domain.
	Domain string
	// Paced means that the target does not answer, and that no further workload leaves it now:
	// the rate of its failure domain is used up.
	Paced bool
	// Refuses is why the target is not expected to create the object of the workload: [Full], [NotServed] or
	// [Rejected]. Empty if it may.
	Refuses Refusal
	// RefusesUntil is when the target is expected to create objects again. Zero means that it is not.
	RefusesUntil time.Time
	// Deleting is true if the target is being deleted: its owner says that it is no longer used.
	Deleting bool
	// EvictAfter is when all workloads leave the target. Zero means never.
	EvictAfter time.Time
	Taints     []corev1.Taint
}

// A Part is what one target has of a workload.
type Part struct {
	workload.AssignedTarget
	// Applied is true if the agent applied the part at the present generation of the workload.
	Applied bool
	// Available is the number of available replicas that the agent reports for it.
	Available int32
	// Gone is true if the agent reports nothing for the part.
	Gone bool
	// Refused is why the target does not create the object, as its agent reports. The target has no object
	// then. It is empty if the target creates it.
	Refused Refusal
	// Message explains a refusal, for people.
	Message string
	// Orphaned is true if the target leaves the part in the physical cluster when it gives it away.
	Orphaned bool
}

// A Decision says what each target runs.
type Decision struct {
	Targets []workload.AssignedTarget
	// Reason is a word that says why the workload is not scheduled. It is empty if it is.
	Reason string
	// Refused counts the targets that take no new replicas, by [Refusal].
	Refused map[Refusal]int
	// Refusals has the same by the key of the target.
	Refusals map[string]Refusal
	// Message is that of a target that has rejected the workload, for people.
	Message string
	// Evicted are the keys of targets that do not answer and that the workload begins to leave.
	Evicted []string
	// Again is the time after which the decision may differ though nothing else changes. Zero
	// means never.
	Again time.Duration
}

// Reasons why a workload is not scheduled.
const (
	// NoPlacement means that no Placement selects the workload.
	NoPlacement = "NoPlacement"
	// NoTarget means that no target takes the workload.
	NoTarget = "NoTarget"
	// NoFit means that the targets do not take all replicas.
	NoFit = "NoFit"
	// Suspended means that the Placement keeps the workload where it is.
	Suspended = "Suspended"
	// Moving means that the workload leaves a target before it begins elsewhere.
	Moving = "Moving"
	// NotFenced means that the target of the workload does not answer, so that it is not known
	// whether the workload runs there.
	NotFenced = "NotFenced"
	// TooMany means that the Placement selects more targets than a workload may use.
	TooMany = "TooManyTargets"
	// Misfit means that the workload is not as its ResourceProfile says.
	Misfit = "ProfileMismatch"
	// Pinned means that the workload stays where its data are.
	Pinned = "Pinned"
	// Limited means that the target of the workload does not answer, and that the workload waits for
	// its turn to leave.
	Limited = "RateLimited"
	// Budget means that a PodDisruptionBudget does not let the workload stop.
	Budget = "Budget"
)

// Decide returns what each target runs. It never reduces the placed replicas because no other
// target has room.
func Decide(s Snapshot) Decision {
	d := &decider{Snapshot: s, out: Decision{Refused: map[Refusal]int{}, Refusals: map[string]Refusal{}}, parts: map[string]Part{}}
	for _, p := range s.Parts {
		d.parts[p.Key] = p
	}
	d.judgeAll()
	if d.Policy.Exclusive {
		d.one()
	} else {
		d.choose()
		d.divide()
		d.leave()
	}
	slices.SortFunc(d.out.Targets, func(a, b workload.AssignedTarget) int { return cmp.Compare(a.Key, b.Key) })
	d.out.Evicted, d.out.Message = d.evicted(), d.message()
	return d.out
}

// evicted returns the targets that do not answer and that the workload begins to leave.
func (d *decider) evicted() (keys []string) {
	for _, t := range d.out.Targets {
		before := d.parts[t.Key].Phase
		begins := before == workload.Active && t.Phase != workload.Active
		if d.Policy.Exclusive { // one that waits to be stopped has not begun
			begins = before != workload.Removing && t.Phase == workload.Removing
		}
		if begins && d.out.Refusals[t.Key] == Lost {
			keys = append(keys, t.Key)
		}
	}
	return keys
}

type decider struct {
	Snapshot
	out Decision

	parts    map[string]Part
	hopeless bool // see unacceptable

	judged []judged // targets that keep or take replicas, the best first
	chosen []judged // those that the workload uses
}

// have returns the replicas that a target runs and that count for the workload.
func (d *decider) have(key string) int32 {
	p, ok := d.parts[key]
	if !ok || p.Phase == workload.Removing || p.Replicas == nil {
		return 0
	}
	return *p.Replicas
}

// holds reports whether a target runs a part.
func (d *decider) holds(key string) bool {
	p, ok := d.parts[key]
	return ok && p.Phase != workload.Removing
}

// choose orders the targets, and limits their number.
func (d *decider) choose() {
	type candidate struct {
		judged *judged
		have   int32
		holds  bool
		rank   uint64
	}
	var usable []candidate
	d.chosen = nil
	for i := range d.judged {
		j := &d.judged[i]
		holds := d.holds(j.Key)
		if j.verdict == gives || j.verdict == keeps && !holds {
			continue
		}
		usable = append(usable, candidate{j, d.have(j.Key), holds, rank(d.ID, j.Key)})
	}
	slices.SortFunc(usable, func(a, b candidate) int {
		return cmp.Or(
			cmp.Compare(b.have, a.have),
			first(a.holds, b.holds),
			cmp.Compare(b.rank, a.rank),
			cmp.Compare(a.judged.Key, b.judged.Key),
		)
	})
	for _, c := range usable[:min(len(usable), d.count())] {
		d.chosen = append(d.chosen, *c.judged)
	}
	if d.Policy.Everywhere && len(usable) > MaxTargets {
		d.out.Reason = TooMany
	}
}

// count returns how many targets the workload uses at most.
func (d *decider) count() int {
	n := MaxTargets
	if d.Policy.Targets > 0 {
		n = min(n, d.Policy.Targets)
	}
	switch {
	case d.Policy.Strategy == scheduling.Single:
		return 1
	case d.Policy.Strategy == scheduling.Duplicated || d.Policy.Everywhere:
		return n
	case d.Replicas == nil: // Auto
		return 1
	}
	return min(n, max(1, int(*d.Replicas/max(1, d.Policy.Min))))
}

// divide gives the chosen targets their replicas.
func (d *decider) divide() {
	if len(d.chosen) == 0 {
		d.out.Reason = NoTarget
		return
	}
	var parts []int32
	switch {
	case d.Replicas == nil:
	case d.Policy.Strategy == scheduling.Duplicated || d.Policy.Everywhere:
		parts = slices.Repeat([]int32{*d.Replicas}, len(d.chosen))
	default:
		parts = d.divided()
	}
	for i, t := range d.chosen {
		p := workload.AssignedTarget{Key: t.Key, Location: t.Location, Phase: workload.Active}
		if parts != nil {
			if parts[i] == 0 && *d.Replicas > 0 && !d.required(i, parts) {
				continue
			}
			p.Replicas = new(parts[i])
		}
		d.out.Targets = append(d.out.Targets, p)
	}
}

// required reports whether chosen target i keeps a part without replicas: a workload is always at
// one target at least.
func (d *decider) required(i int, parts []int32) bool {
	return i == 0 && slices.Max(parts) == 0
}

func (d *decider) divided() []int32 {
	have, floors, caps := make([]int32, len(d.chosen)), make([]int32, len(d.chosen)), make([]int32, len(d.chosen))
	for i, t := range d.chosen {
		have[i], caps[i], floors[i] = d.have(t.Key), *d.Replicas, min(d.Policy.Min, *d.Replicas)
		if d.Policy.Max > 0 {
			caps[i] = min(caps[i], d.Policy.Max)
		}
		if t.verdict == keeps {
			caps[i] = min(caps[i], have[i])
		}
		floors[i] = min(floors[i], caps[i])
	}
	parts := Divide(*d.Replicas, have, floors, caps)
	if sum(parts) < int64(*d.Replicas) {
		d.out.Reason = NoFit
	}
	return parts
}

// leave adds the parts of targets that were not chosen. A part leaves after its replacements
// are available, and it stays if there is none.
func (d *decider) leave() {
	used := map[string]bool{}
	for _, t := range d.out.Targets {
		used[t.Key] = true
	}
	for _, p := range d.Parts {
		if used[p.Key] {
			continue
		}
		next := p.AssignedTarget
		switch {
		case p.Phase == workload.Removing && p.Gone:
			continue
		case p.Phase == workload.Removing:
		case d.Policy.Everywhere && d.out.Refusals[p.Key] == Lost:
			next.Phase = workload.Evicting // it replaces nothing elsewhere, and goes on when the target answers
		case d.replaced():
			next.Phase, next.Replicas = workload.Removing, nil
			if p.Orphaned {
				next.Reason = workload.Orphaned
			}
		default:
			next.Phase = workload.Evicting
		}
		if next.Phase != workload.Removing || next.Reason != workload.Orphaned {
			next.Reason = cmp.Or(string(d.why(p.Key)), next.Reason)
		}
		d.out.Targets = append(d.out.Targets, next)
	}
}

// replaced reports whether everything that the workload wants runs at the targets that were
// chosen. An empty set replaces nothing.
func (d *decider) replaced() bool {
	if d.Policy.Everywhere {
		return len(d.chosen) > 0
	}
	active := 0
	for _, t := range d.out.Targets {
		if t.Phase != workload.Active {
			continue
		}
		active++
		p, ok := d.parts[t.Key]
		if !ok || p.Phase == workload.Removing || !p.Applied || !d.answers(t.Key) {
			return false
		}
		if t.Replicas != nil && (p.Replicas == nil || p.Available < *t.Replicas) {
			return false
		}
	}
	return active > 0 && d.out.Reason == ""
}

func (d *decider) answers(key string) bool {
	return slices.ContainsFunc(d.judged, func(j judged) bool { return j.Key == key && j.Unreachable.IsZero() && !j.AgentLost })
}

// why returns why a target gives its part away.
func (d *decider) why(key string) Refusal {
	for _, j := range d.judged {
		if j.Key == key && j.verdict == gives {
			return j.refusal
		} else if j.Key == key {
			return Moved
		}
	}
	return Deleted
}

// first orders true before false.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
