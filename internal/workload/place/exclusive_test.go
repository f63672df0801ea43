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
	drained := target("a")
	drained.Taints = []corev1.Taint{{Key: workload.DrainTaint, Effect: corev1.TaintEffectNoExecute}}
	cordoned := target("b")
	cordoned.Unschedulable = true
	leaving, gone, fresh := part("a", 3, workload.Removing), part("a", 3, workload.Removing), part("a", 3, workload.Active)
	gone.Gone, fresh.Gone = true, true
	orphaned := part("a", 3, workload.Active)
	orphaned.Orphaned = true
	here := part("a", 3, workload.Active)
	for name, c := range map[string]struct {
		policy  Policy
		targets []Target
		parts   []Part
		want    []string
		reason  string
	}{
		"new":                           {targets: []Target{target("a")}, want: []string{"a:3:Active"}},
		"nothing takes it":              {targets: []Target{cordoned}, reason: NoTarget},
		"stays":                         {targets: []Target{target("a"), target("b")}, parts: []Part{here}, want: []string{"a:3:Active"}},
		"stays before it is reported":   {targets: []Target{target("a"), target("b")}, parts: []Part{fresh}, want: []string{"a:3:Active"}},
		"leaves before it begins":       {targets: []Target{drained, target("b")}, parts: []Part{here}, want: []string{"a:-1:Removing"}, reason: Moving},
		"still leaves":                  {targets: []Target{drained, target("b")}, parts: []Part{leaving}, want: []string{"a:-1:Removing"}, reason: Moving},
		"has left":                      {targets: []Target{drained, target("b")}, parts: []Part{gone}, want: []string{"b:3:Active"}},
		"nothing else takes it":         {targets: []Target{drained, cordoned}, parts: []Part{here}, want: []string{"a:3:Evicting"}, reason: NoTarget},
		"lost: nobody knows":            {targets: []Target{lost, target("b")}, parts: []Part{here}, want: []string{"a:3:Evicting"}, reason: NotFenced},
		"lost, and the owner says dead": {targets: []Target{dead, target("b")}, parts: []Part{here}, want: []string{"a:-1:Removing"}, reason: Moving},
		"its target is deleted":         {targets: []Target{target("b")}, parts: []Part{gone}, want: []string{"b:3:Active"}},
		"pinned":                        {policy: Policy{Only: "a"}, targets: []Target{drained, target("b")}, parts: []Part{here}, want: []string{"a:3:Evicting"}, reason: Pinned},
		"pinned to a dead one":          {policy: Policy{Only: "a"}, targets: []Target{dead, target("b")}, parts: []Part{here}, want: []string{"a:-1:Removing"}, reason: Moving},
		"finished: leaves, begins not":  {policy: Policy{Finished: true}, targets: []Target{drained, target("b")}, parts: []Part{here}, want: []string{"a:-1:Removing"}},
		"finished: has left":            {policy: Policy{Finished: true}, targets: []Target{drained, target("b")}, parts: []Part{gone}},
		"orphaned":                      {targets: []Target{drained, target("b")}, parts: []Part{orphaned}, want: []string{"a:-1:Removing"}, reason: Moving},
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

// Rules I2, I3 and I4 for workloads that one target at a time has.
func TestExclusiveIsLiveOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for range 100_000 {
		s := randomSnapshot(r)
		s.Policy.Exclusive, s.Policy.Finished = true, r.IntN(5) == 0
		d := Decide(s)
		fail := func(why string) { t.Fatalf("%s\nsnapshot %+v\ndecision %v %q", why, s, short(d), d.Reason) }
		live, removing := 0, 0
		for _, a := range d.Targets {
			if a.Phase == workload.Removing {
				removing++
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

// What is everywhere is at all targets that take it, and leaves a target without waiting for others.
func TestEverywhere(t *testing.T) {
	lost, drained := target("b"), target("c")
	lost.Unreachable = now.Add(-20 * time.Second)
	drained.Taints = []corev1.Taint{{Key: workload.DrainTaint, Effect: corev1.TaintEffectNoExecute}}
	at := func(key string) Part {
		return Part{AssignedTarget: workload.AssignedTarget{Key: key, Phase: workload.Active}, Applied: true}
	}
	d := Decide(Snapshot{ID: "x", Policy: Policy{Everywhere: true}, Now: now, Targets: []Target{target("a"), lost, drained, target("d")}, Parts: []Part{at("a"), at("b"), at("c")}})
	if diff := cmp.Diff([]string{"a:-1:Active", "b:-1:Active", "c:-1:Removing", "d:-1:Active"}, short(d)); diff != "" {
		t.Error(diff)
	}
}
