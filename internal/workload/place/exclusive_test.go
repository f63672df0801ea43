package place

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

func TestDecideExclusive(t *testing.T) {
	lost := target("a")
	lost.Unreachable = now.Add(-time.Hour)
	dead := lost
	dead.Deleting, dead.EvictAfter = true, now.Add(-time.Minute)
	late, burned, leased, agentless, back := lost, lost, lost, target("a"), target("a")
	late.Unreachable = now.Add(-90 * time.Second)
	turn := lost
	turn.Fenced, turn.Paced = true, true
	burned.Fenced, leased.LeaseEnd, agentless.AgentLost, back.Cleaning = true, lost.Unreachable, true, true
	drained := target("a")
	drained.Taints = []corev1.Taint{{Key: workload.DrainTaint, Effect: corev1.TaintEffectNoExecute}}
	cordoned := target("b")
	cordoned.Unschedulable = true
	leaving, gone, fresh := part("a", 3, workload.Removing), part("a", 3, workload.Removing), part("a", 3, workload.Active)
	gone.Gone, fresh.Gone = true, true
	orphaned := part("a", 3, workload.Active)
	orphaned.Orphaned = true
	here := part("a", 3, workload.Active)
	unmade, full := part("a", 3, workload.Active), target("a")
	unmade.Applied, unmade.Available, unmade.Refused, full.Refuses, full.RefusesUntil = false, 0, Full, Full, now.Add(time.Second)
	for name, c := range map[string]struct {
		policy  Policy
		targets []Target
		parts   []Part
		want    []string
		reason  string
	}{
		"new":                                {targets: []Target{target("a")}, want: []string{"a:3:Active"}},
		"nothing takes it":                   {targets: []Target{cordoned}, reason: NoTarget},
		"stays":                              {targets: []Target{target("a"), target("b")}, parts: []Part{here}, want: []string{"a:3:Active"}},
		"stays before it is reported":        {targets: []Target{target("a"), target("b")}, parts: []Part{fresh}, want: []string{"a:3:Active"}},
		"leaves before it begins":            {targets: []Target{drained, target("b")}, parts: []Part{here}, want: []string{"a:-1:Removing"}, reason: Moving},
		"still leaves":                       {targets: []Target{drained, target("b")}, parts: []Part{leaving}, want: []string{"a:-1:Removing"}, reason: Moving},
		"has left":                           {targets: []Target{drained, target("b")}, parts: []Part{gone}, want: []string{"b:3:Active"}},
		"nothing else takes it":              {targets: []Target{drained, cordoned}, parts: []Part{here}, want: []string{"a:3:Evicting"}, reason: NoTarget},
		"lost, and perhaps it still runs":    {targets: []Target{lost, target("b")}, parts: []Part{here}, want: []string{"a:3:Evicting"}, reason: NotFenced},
		"lost, and the owner says dead":      {targets: []Target{dead, target("b")}, parts: []Part{here}, want: []string{"a:-1:Removing"}, reason: Moving},
		"its target is deleted":              {targets: []Target{target("b")}, parts: []Part{gone}, want: []string{"b:3:Active"}},
		"pinned":                             {policy: Policy{Only: "a"}, targets: []Target{drained, target("b")}, parts: []Part{here}, want: []string{"a:3:Evicting"}, reason: Pinned},
		"pinned to a dead one":               {policy: Policy{Only: "a"}, targets: []Target{dead, target("b")}, parts: []Part{here}, want: []string{"a:-1:Removing"}, reason: Moving},
		"finished: leaves, begins not":       {policy: Policy{Finished: true}, targets: []Target{drained, target("b")}, parts: []Part{here}, want: []string{"a:-1:Removing"}},
		"finished: has left":                 {policy: Policy{Finished: true}, targets: []Target{drained, target("b")}, parts: []Part{gone}},
		"needed":                             {policy: Policy{Needed: true}, targets: []Target{drained, target("b")}, parts: []Part{here}, want: []string{"a:3:Evicting"}, reason: Budget},
		"needed, but lost":                   {policy: Policy{Needed: true}, targets: []Target{burned, target("b")}, parts: []Part{here}, want: []string{"a:-1:Removing"}, reason: Moving},
		"lost, not for long":                 {targets: []Target{late, target("b")}, parts: []Part{here}, want: []string{"a:3:Active"}},
		"its agent is lost":                  {targets: []Target{agentless, target("b")}, parts: []Part{here}, want: []string{"a:3:Active"}},
		"fenced":                             {targets: []Target{burned, target("b")}, parts: []Part{here}, want: []string{"a:-1:Removing"}, reason: Moving},
		"fenced, nothing else takes it":      {targets: []Target{burned, cordoned}, parts: []Part{here}, want: []string{"a:3:Evicting"}, reason: NoTarget},
		"fenced, begins elsewhere":           {targets: []Target{burned, target("b")}, parts: []Part{leaving}, want: []string{"a:-1:Removing", "b:3:Active"}},
		"pinned and fenced":                  {policy: Policy{Only: "a"}, targets: []Target{burned, target("b")}, parts: []Part{here}, want: []string{"a:3:Evicting"}, reason: Pinned},
		"was fenced, is back":                {targets: []Target{back, target("b")}, parts: []Part{leaving, part("b", 3, workload.Active)}, want: []string{"a:-1:Removing", "b:3:Active"}, reason: Moving},
		"the lease has not run out for long": {policy: Policy{StopsWithin: 2 * time.Hour}, targets: []Target{leased, target("b")}, parts: []Part{here}, want: []string{"a:3:Evicting"}, reason: NotFenced},
		"the agent has stopped it":           {policy: Policy{StopsWithin: time.Minute}, targets: []Target{leased, target("b")}, parts: []Part{leaving}, want: []string{"a:-1:Removing", "b:3:Active"}},
		"an agent without a lease":           {policy: Policy{StopsWithin: time.Minute}, targets: []Target{lost, target("b")}, parts: []Part{here}, want: []string{"a:3:Evicting"}, reason: NotFenced},
		"fenced, not its turn":               {targets: []Target{turn, target("b")}, parts: []Part{here}, want: []string{"a:3:Evicting"}, reason: Limited},
		"without fencing":                    {policy: Policy{Unfenced: true}, targets: []Target{lost, target("b")}, parts: []Part{leaving}, want: []string{"a:-1:Removing", "b:3:Active"}},
		"full":                               {targets: []Target{full, target("b")}, parts: []Part{unmade}, want: []string{"a:-1:Removing"}, reason: Moving},
		"full, has left":                     {targets: []Target{full, target("b")}, parts: []Part{gone}, want: []string{"b:3:Active"}},
		"full, nothing else takes it":        {targets: []Target{full, cordoned}, parts: []Part{unmade}, want: []string{"a:3:Evicting"}, reason: NoTarget},
		"full, but it has its data there":    {policy: Policy{Only: "a"}, targets: []Target{full, target("b")}, parts: []Part{unmade}, want: []string{"a:3:Active"}},
		"orphaned":                           {targets: []Target{drained, target("b")}, parts: []Part{orphaned}, want: []string{"a:-1:Removing"}, reason: Moving},
	} {
		t.Run(name, func(t *testing.T) {
			c.policy.Exclusive = true
			d := Decide(Snapshot{ID: "x", Replicas: new(int32(3)), Policy: c.policy, Targets: c.targets, Parts: c.parts, Now: now})
			if diff := cmp.Diff(c.want, short(d)); diff != "" || d.Reason != c.reason {
				t.Errorf("reason %q, want %q\n%s", d.Reason, c.reason, diff)
			}
			if name == "orphaned" && d.Targets[0].Reason != workload.Orphaned {
				t.Errorf("%+v", d.Targets)
			}
		})
	}
}

// knownToBeStopped says the same as the design does about fencing.
func knownToBeStopped(s Snapshot, key string) bool {
	for _, t := range s.Targets {
		if t.Key == key && !t.Unreachable.IsZero() {
			byLease := s.Policy.StopsWithin > 0 && !t.LeaseEnd.IsZero() && !s.Now.Before(t.LeaseEnd.Add(s.Policy.StopsWithin))
			return t.Fenced || byLease || s.Policy.Unfenced && !s.Now.Before(t.Unreachable.Add(SingletonToleration))
		}
	}
	return false
}

// Rules I2, I3 and I4 for workloads that one target at a time has.
func TestExclusiveIsLiveOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for range rounds(100_000) {
		s := randomSnapshot(r)
		s.Policy.Exclusive, s.Policy.Finished, s.Policy.Unfenced = true, r.IntN(5) == 0, r.IntN(8) == 0
		s.Policy.StopsWithin = time.Duration(r.IntN(3)) * time.Minute
		d := Decide(s)
		fail := func(why string) { t.Fatalf("%s\nsnapshot %+v\ndecision %v %q", why, s, short(d), d.Reason) }
		live, removing := 0, 0
		for _, a := range d.Targets {
			if a.Phase == workload.Removing {
				if !knownToBeStopped(s, a.Key) {
					removing++
				}
				continue
			}
			live++
			if d.Reason == "" && *a.Replicas != *s.Replicas {
				fail("I1: not what is wanted")
			}
			if !slices.ContainsFunc(s.Parts, func(p Part) bool { return p.Key == a.Key && p.Phase != workload.Removing }) && removing > 0 {
				fail("I2: it begins before it has left")
			}
		}
		if live > 1 {
			fail("I2: live at two targets")
		}
		for _, p := range s.Parts {
			known := slices.IndexFunc(s.Targets, func(t Target) bool { return t.Key == p.Key })
			dropped := !slices.ContainsFunc(d.Targets, func(a workload.AssignedTarget) bool { return a.Key == p.Key })
			if dropped && !p.Gone {
				fail("I2: a part that may run is forgotten")
			}
			if dropped && p.Phase != workload.Removing && known >= 0 {
				fail("I3: a part is forgotten without being removed")
			}
		}
		if d.Reason == NoTarget && removing > 0 && live == 0 && !slices.ContainsFunc(s.Parts, func(p Part) bool { return p.Phase == workload.Removing }) {
			fail("I4: nothing fits, and it is removed")
		}
	}
}

// A DaemonSet is at all targets that take it, and leaves a target without waiting for the others. It stays at a
// target that does not answer, unless the target is being deleted.
func TestEverywhere(t *testing.T) {
	lost, drained := target("b"), target("c")
	lost.Unreachable = now.Add(-20 * time.Second)
	long, dead := target("e"), target("f")
	long.Unreachable = now.Add(-time.Hour)
	dead.Unreachable, dead.Deleting, dead.EvictAfter = long.Unreachable, true, now
	drained.Taints = []corev1.Taint{{Key: workload.DrainTaint, Effect: corev1.TaintEffectNoExecute}}
	at := func(key string) Part {
		return Part{AssignedTarget: workload.AssignedTarget{Key: key, Phase: workload.Active}, Applied: true}
	}
	d := Decide(Snapshot{ID: "x", Policy: Policy{Everywhere: true}, Now: now, Targets: []Target{target("a"), lost, drained, target("d"), long, dead},
		Parts: []Part{at("a"), at("b"), at("c"), at("e"), at("f")}})
	if diff := cmp.Diff([]string{"a:-1:Active", "b:-1:Active", "c:-1:Removing", "d:-1:Active", "e:-1:Evicting", "f:-1:Removing"}, short(d)); diff != "" {
		t.Error(diff)
	}
	back := part("e", 0, workload.Evicting)
	back.Replicas = nil
	d = Decide(Snapshot{ID: "x", Policy: Policy{Everywhere: true}, Now: now, Targets: []Target{target("a"), target("e")}, Parts: []Part{at("a"), back}})
	if diff := cmp.Diff([]string{"a:-1:Active", "e:-1:Active"}, short(d)); diff != "" {
		t.Errorf("when the target is back: %s", diff)
	}
}
