package place

import (
	"cmp"
	"hash/fnv"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// A Refusal is a word that says why a target takes no new replicas, or gives away those that it
// has.
type Refusal string

// Refusals.
const (
	// NotSelected means that the Placement selects no Location of the target.
	NotSelected Refusal = "NotSelected"
	// NotReady means that the agent of the target has not reported yet.
	NotReady Refusal = "NotReady"
	// Cordoned means that spec.unschedulable is set.
	Cordoned Refusal = "Cordoned"
	// Tainted means that the workload does not tolerate a taint.
	Tainted Refusal = "Tainted"
	// Draining means that all workloads leave the target.
	Draining Refusal = "Draining"
	// Lost means that the target does not answer.
	Lost Refusal = "Unreachable"
	// Moved means that other targets are used.
	Moved Refusal = "Moved"
	// Deleted means that the target was deleted.
	Deleted Refusal = "Deleted"
	// Elsewhere means that another target has the data of the workload.
	Elsewhere Refusal = "DataElsewhere"
	// AgentLost means that the agent of the target does not report although the target is
	// alive.
	AgentLost Refusal = "AgentLost"
	// Held means that the target does not answer, and that no workload leaves it, because most
	// targets do not answer.
	Held Refusal = "Held"
	// Paced means that the target does not answer, and that the workload waits for its turn to leave.
	Paced Refusal = "RateLimited"
	// Cleaning means that the target is back, and removes what began elsewhere.
	Cleaning Refusal = "Fenced"
	// Full means that the target creates no more objects for the workspace.
	Full Refusal = "Full"
	// NotServed means that the target does not serve the kind of the workload.
	NotServed Refusal = "NotServed"
	// Rejected means that the target did not accept the workload.
	Rejected Refusal = "Rejected"
	// Leaving means that the target still removes the part that it had. Until it reports that, its last
	// report says that the part runs.
	Leaving Refusal = "Removing"
)

// How long a workload stays at a target that does not answer, by default.
const (
	DefaultToleration   = 60 * time.Second
	SingletonToleration = 120 * time.Second
)

// A verdict says what a target may do with replicas.
type verdict int

const (
	takes verdict = iota // keeps those that it has, and takes more
	keeps                // keeps those that it has
	gives                // gives those away that it has
)

type judged struct {
	Target
	verdict verdict
	refusal Refusal
}

func (d *decider) judgeAll() {
	d.hopeless = d.unacceptable()
	for _, t := range d.Targets {
		j := judged{Target: t}
		j.verdict, j.refusal = d.judge(t)
		if j.verdict != takes {
			d.out.Refused[j.refusal]++
			d.out.Refusals[t.Key] = j.refusal
		}
		d.judged = append(d.judged, j)
	}
}

// judge decides what a target may do. The cheapest questions come first.
func (d *decider) judge(t Target) (verdict, Refusal) {
	if d.Policy.Only != "" && t.Key != d.Policy.Only {
		return gives, Elsewhere
	}
	if t.Location == "" {
		return gives, NotSelected
	}
	if !t.EvictAfter.IsZero() {
		if wait := t.EvictAfter.Sub(d.Now); wait <= 0 {
			return gives, Draining
		} else {
			d.again(wait)
		}
	}
	p, has := d.parts[t.Key]
	if has && p.Refused != "" && t.Unreachable.IsZero() && !t.AgentLost && d.movable() {
		if p.Refused == Rejected && d.hopeless {
			return keeps, Rejected
		}
		return gives, p.Refused
	}
	worst, why := takes, Refusal("")
	add := func(v verdict, r Refusal) {
		if v > worst {
			worst, why = v, r
		}
	}
	switch {
	case !t.Unreachable.IsZero():
		add(d.lost(t))
	case t.AgentLost:
		add(keeps, AgentLost)
	case t.Cleaning:
		add(keeps, Cleaning)
	}
	for _, taint := range t.Taints {
		add(d.taint(taint))
	}
	if t.Unschedulable {
		add(keeps, Cordoned)
	}
	if !t.Ready {
		add(keeps, NotReady)
	}
	if has && p.Phase == workload.Removing && !p.Gone {
		add(keeps, Leaving)
	}
	if (!has || p.Phase == workload.Removing) && t.Refuses != "" && d.movable() && (t.RefusesUntil.IsZero() || d.pending(t.RefusesUntil.Sub(d.Now))) {
		add(keeps, t.Refuses)
	}
	return worst, why
}

// unacceptable reports whether so many targets have rejected the workload, and none has accepted it, that it is not
// offered to others.
func (d *decider) unacceptable() bool {
	rejected := 0
	for _, t := range d.Targets {
		if t.Refuses == Rejected {
			rejected++
		}
	}
	return rejected >= workload.MaxRejections && !slices.ContainsFunc(d.Parts, func(p Part) bool { return p.Applied && p.Phase != workload.Removing })
}

// message returns what the first target says that has rejected the workload.
func (d *decider) message() string {
	var of Part
	for _, p := range d.Parts {
		if p.Refused == Rejected && (of.Key == "" || p.Key < of.Key) {
			of = p
		}
	}
	return of.Message
}

// movable reports whether a part that a target refuses may go to another target and stay there. With a minimum of each
// target, the one that refuses would be tried again and again.
func (d *decider) movable() bool {
	return !d.Policy.Everywhere && d.Policy.Strategy != scheduling.Duplicated && d.Policy.Only == "" && d.Policy.Min == 0
}

// lost decides about a target that does not answer.
func (d *decider) lost(t Target) (verdict, Refusal) {
	wait, ends := d.patience(t)
	switch {
	case !ends:
		return keeps, Lost
	case wait > 0 && !t.Fenced:
		d.again(wait)
		return keeps, Lost
	case d.Hold && !t.Confirmed && !t.Fenced:
		return keeps, Held
	case t.Paced && !d.Policy.Exclusive && d.parts[t.Key].Phase == workload.Active:
		return keeps, Paced
	}
	return gives, Lost
}

// patience returns how long the workload still tolerates a target that does not answer. It reports false if it stays
// for ever.
func (d *decider) patience(t Target) (wait time.Duration, ends bool) {
	limit := DefaultToleration
	if d.Policy.Exclusive {
		limit = SingletonToleration
	}
	if of, ok := d.tolerates(corev1.Taint{Key: workload.UnreachableTaint, Effect: corev1.TaintEffectNoExecute}); ok {
		if of.TolerationSeconds == nil {
			return 0, false
		}
		limit = time.Duration(*of.TolerationSeconds) * time.Second
	}
	from := t.Unreachable
	if d.Known.After(from) {
		from = d.Known
	}
	return from.Add(limit).Sub(d.Now), true
}

func (d *decider) taint(t corev1.Taint) (verdict, Refusal) {
	why := Tainted
	of, ok := d.tolerates(t)
	if t.Key == workload.DrainTaint { // the owner of the target decides, not the tenant
		why, ok = Draining, false
	}
	switch {
	case t.Effect == corev1.TaintEffectPreferNoSchedule:
		return takes, ""
	case t.Effect == corev1.TaintEffectNoSchedule && ok:
		return takes, ""
	case t.Effect == corev1.TaintEffectNoSchedule:
		return keeps, why
	case !ok:
		return gives, why
	case of.TolerationSeconds == nil || t.TimeAdded == nil:
		return takes, ""
	}
	if wait := t.TimeAdded.Add(time.Duration(*of.TolerationSeconds) * time.Second).Sub(d.Now); wait > 0 {
		d.again(wait)
		return keeps, why
	}
	return gives, why
}

func (d *decider) tolerates(t corev1.Taint) (corev1.Toleration, bool) {
	i := slices.IndexFunc(d.Policy.Tolerations, func(of corev1.Toleration) bool {
		return (of.Effect == "" || of.Effect == t.Effect) && (of.Key == t.Key || of.Key == "" && of.Operator == corev1.TolerationOpExists) &&
			(of.Operator == corev1.TolerationOpExists || (of.Operator == "" || of.Operator == corev1.TolerationOpEqual) && of.Value == t.Value)
	})
	if i < 0 {
		return corev1.Toleration{}, false
	}
	return d.Policy.Tolerations[i], true
}

// again makes the decision due again in d at the latest.
func (d *decider) again(wait time.Duration) {
	d.out.Again = cmp.Or(min(d.out.Again, wait), d.out.Again, wait)
}

// rank orders equal targets for a workload: each workload has an order of its own, and a target
// that comes or goes does not change the order of the others.
func rank(id, key string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // a hash never fails
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(key))
	x := h.Sum64() // FNV mixes the last bytes badly
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return x
}
