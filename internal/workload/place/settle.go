package place

import (
	"reflect"
	"time"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// mostSteps is how many decisions [Settle] makes at most.
const mostSteps = 64

// Settle returns the decision at which a workload arrives if nothing else changes: targets that
// answer apply what they are assigned, their replicas become available, and time passes.
func Settle(s Snapshot) Decision {
	d := Decide(s)
	for range mostSteps {
		next := s
		next.Parts = applied(s, d)
		then := Decide(next)
		if reflect.DeepEqual(then.Targets, d.Targets) && then.Reason == d.Reason {
			if then.Again == 0 {
				return then
			}
			next.Now = next.Now.Add(then.Again + time.Millisecond)
			then = Decide(next)
		}
		s, d = next, then
	}
	return d
}

// applied returns the parts after the targets that answer have done what was decided.
func applied(s Snapshot, d Decision) (parts []Part) {
	answers := map[string]bool{}
	for _, t := range s.Targets {
		answers[t.Key] = t.Unreachable.IsZero() && !t.AgentLost && t.Ready
	}
	before := map[string]Part{}
	for _, p := range s.Parts {
		before[p.Key] = p
	}
	for _, t := range d.Targets {
		p := before[t.Key]
		p.AssignedTarget = t
		if answers[t.Key] {
			p.Gone = t.Phase == workload.Removing
			if p.Gone || before[t.Key].Phase == workload.Removing {
				p.Refused = ""
			}
			if p.Refused == "" {
				p.Applied, p.Available = true, 0
				if t.Replicas != nil {
					p.Available = *t.Replicas
				}
			}
		} else if _, had := before[t.Key]; !had {
			p.Applied = false
		}
		parts = append(parts, p)
	}
	return parts
}
