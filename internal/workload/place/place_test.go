package place

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func target(key string) Target { return Target{Key: key, Location: "default", Ready: true} }

func part(key string, replicas int32, phase workload.AssignmentPhase) Part {
	return Part{AssignedTarget: workload.AssignedTarget{Key: key, Location: "default", Replicas: &replicas, Phase: phase}, Applied: true, Available: replicas}
}

// short returns a decision as "key:replicas:phase" texts.
func short(d Decision) []string {
	var all []string
	for _, t := range d.Targets {
		n := int32(-1)
		if t.Replicas != nil {
			n = *t.Replicas
		}
		all = append(all, fmt.Sprintf("%s:%d:%s", t.Key, n, t.Phase))
	}
	return all
}

func TestDecide(t *testing.T) {
	lost := target("b")
	lost.Unreachable = now.Add(-2 * time.Minute)
	agentless, paced, burned, down, cleaning := target("b"), lost, lost, lost, target("b")
	agentless.AgentLost, paced.Paced, burned.Fenced, down.Confirmed, cleaning.Cleaning = true, true, true, true, true
	late := target("b")
	late.Unreachable = now.Add(-20 * time.Second)
	drained := target("b")
	drained.Taints = []corev1.Taint{{Key: workload.DrainTaint, Effect: corev1.TaintEffectNoExecute}}
	cordoned := target("b")
	cordoned.Unschedulable = true
	stale := part("a", 5, workload.Active)
	stale.Applied = false
	gone := part("b", 5, workload.Removing)
	gone.Gone = true
	leaving := part("a", 5, workload.Removing)
	unmade, full := part("b", 5, workload.Active), target("b")
	unmade.Applied, unmade.Available, unmade.Refused, full.Refuses, full.RefusesUntil = false, 0, Full, Full, now.Add(40*time.Second)
	leavingUnmade := unmade
	leavingUnmade.Phase = workload.Evicting
	for name, c := range map[string]struct {
		replicas int32
		policy   Policy
		targets  []Target
		parts    []Part
		hold     bool
		want     []string
		reason   string
		again    time.Duration
	}{
		"new":                           {replicas: 10, targets: []Target{target("a"), target("b")}, want: []string{"a:5:Active", "b:5:Active"}},
		"single":                        {replicas: 10, policy: Policy{Strategy: scheduling.Single}, targets: []Target{target("a")}, want: []string{"a:10:Active"}},
		"duplicated":                    {replicas: 3, policy: Policy{Strategy: scheduling.Duplicated}, targets: []Target{target("a"), target("b")}, want: []string{"a:3:Active", "b:3:Active"}},
		"no targets":                    {replicas: 10, reason: NoTarget},
		"scaled to zero":                {replicas: 0, targets: []Target{target("a"), target("b")}, parts: []Part{part("a", 5, workload.Active), part("b", 5, workload.Active)}, want: []string{"a:0:Active", "b:-1:Removing"}},
		"cordoned keeps":                {replicas: 12, targets: []Target{target("a"), cordoned}, parts: []Part{part("a", 5, workload.Active), part("b", 5, workload.Active)}, want: []string{"a:7:Active", "b:5:Active"}},
		"late: nothing moves":           {replicas: 10, targets: []Target{target("a"), late}, parts: []Part{part("a", 5, workload.Active), part("b", 5, workload.Active)}, want: []string{"a:5:Active", "b:5:Active"}, again: 40 * time.Second},
		"lost: make before break":       {replicas: 10, targets: []Target{target("a"), lost}, parts: []Part{part("a", 5, workload.Active), part("b", 5, workload.Active)}, want: []string{"a:10:Active", "b:5:Evicting"}},
		"lost: replaced":                {replicas: 10, targets: []Target{target("a"), lost}, parts: []Part{part("a", 10, workload.Active), part("b", 5, workload.Evicting)}, want: []string{"a:10:Active", "b:-1:Removing"}},
		"lost: nothing fits":            {replicas: 10, targets: []Target{lost}, parts: []Part{part("b", 10, workload.Active)}, want: []string{"b:10:Evicting"}, reason: NoTarget},
		"lost: its agent alone":         {replicas: 10, targets: []Target{target("a"), agentless}, parts: []Part{part("a", 5, workload.Active), part("b", 5, workload.Active)}, want: []string{"a:5:Active", "b:5:Active"}},
		"lost: not its turn":            {replicas: 10, targets: []Target{target("a"), paced}, parts: []Part{part("a", 5, workload.Active), part("b", 5, workload.Active)}, want: []string{"a:5:Active", "b:5:Active"}},
		"lost: it was its turn":         {replicas: 10, targets: []Target{target("a"), paced}, parts: []Part{part("a", 10, workload.Active), part("b", 5, workload.Evicting)}, want: []string{"a:10:Active", "b:-1:Removing"}},
		"lost: hold, but fenced":        {replicas: 10, hold: true, targets: []Target{target("a"), burned}, parts: []Part{part("a", 5, workload.Active), part("b", 5, workload.Active)}, want: []string{"a:10:Active", "b:5:Evicting"}},
		"lost: hold, but down":          {replicas: 10, hold: true, targets: []Target{target("a"), down}, parts: []Part{part("a", 5, workload.Active), part("b", 5, workload.Active)}, want: []string{"a:10:Active", "b:5:Evicting"}},
		"back, but it cleans up":        {replicas: 12, targets: []Target{target("a"), cleaning}, parts: []Part{part("a", 10, workload.Active), part("b", 0, workload.Removing)}, want: []string{"a:12:Active", "b:0:Removing"}},
		"lost: hold":                    {replicas: 10, hold: true, targets: []Target{target("a"), lost}, parts: []Part{part("a", 5, workload.Active), part("b", 5, workload.Active)}, want: []string{"a:5:Active", "b:5:Active"}},
		"came back before it left":      {replicas: 10, targets: []Target{target("a"), target("b")}, parts: []Part{part("a", 10, workload.Active), part("b", 5, workload.Evicting)}, want: []string{"a:5:Active", "b:5:Active"}},
		"came back, was removed":        {replicas: 10, targets: []Target{target("a"), target("b")}, parts: []Part{part("a", 10, workload.Active), gone}, want: []string{"a:10:Active"}},
		"drained, not yet available":    {replicas: 10, targets: []Target{target("a"), drained}, parts: []Part{stale, part("b", 5, workload.Evicting)}, want: []string{"a:10:Active", "b:5:Evicting"}},
		"deleted target":                {replicas: 10, targets: []Target{target("a")}, parts: []Part{part("a", 10, workload.Active), part("x", 5, workload.Active)}, want: []string{"a:10:Active", "x:-1:Removing"}},
		"not selected any more":         {replicas: 4, targets: []Target{target("a"), {Key: "b", Ready: true}}, parts: []Part{part("b", 4, workload.Active)}, want: []string{"a:4:Active", "b:4:Evicting"}},
		"selected again, still removed": {replicas: 5, policy: Policy{Strategy: scheduling.Single}, targets: []Target{target("a"), {Key: "b", Ready: true}}, parts: []Part{leaving, part("b", 5, workload.Active)}, want: []string{"a:5:Removing", "b:5:Evicting"}, reason: NoTarget},
		"full: it goes elsewhere":       {replicas: 10, targets: []Target{target("a"), target("b")}, parts: []Part{part("a", 5, workload.Active), unmade}, want: []string{"a:10:Active", "b:5:Evicting"}},
		"full: replaced":                {replicas: 10, targets: []Target{target("a"), target("b")}, parts: []Part{part("a", 10, workload.Active), leavingUnmade}, want: []string{"a:10:Active", "b:-1:Removing"}},
		"full: nothing else fits":       {replicas: 5, targets: []Target{target("b")}, parts: []Part{unmade}, want: []string{"b:5:Evicting"}, reason: NoTarget},
		"full: duplicates stay":         {replicas: 5, policy: Policy{Strategy: scheduling.Duplicated}, targets: []Target{target("a"), target("b")}, parts: []Part{part("a", 5, workload.Active), unmade}, want: []string{"a:5:Active", "b:5:Active"}},
		"full: with a minimum it stays": {replicas: 10, policy: Policy{Min: 2}, targets: []Target{target("a"), target("b")}, parts: []Part{part("a", 5, workload.Active), unmade}, want: []string{"a:5:Active", "b:5:Active"}},
		"full: a new one avoids it":     {replicas: 10, targets: []Target{target("a"), full}, want: []string{"a:10:Active"}, again: 40 * time.Second},
		"full: what it has can grow":    {replicas: 20, targets: []Target{target("a"), full}, parts: []Part{part("a", 5, workload.Active), part("b", 5, workload.Active)}, want: []string{"a:10:Active", "b:10:Active"}},
		"full: room again":              {replicas: 10, targets: []Target{target("a"), full}, parts: []Part{part("a", 5, workload.Active), part("b", 5, workload.Evicting)}, want: []string{"a:5:Active", "b:5:Active"}},
		"at most three each":            {replicas: 10, policy: Policy{Max: 3}, targets: []Target{target("a"), target("b")}, want: []string{"a:3:Active", "b:3:Active"}, reason: NoFit},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decide(Snapshot{ID: "x", Replicas: &c.replicas, Policy: c.policy, Targets: c.targets, Parts: c.parts, Hold: c.hold, Now: now})
			if diff := cmp.Diff(c.want, short(d)); diff != "" || d.Reason != c.reason || d.Again != c.again {
				t.Errorf("reason %q, again %v, want %q, %v\n%s", d.Reason, d.Again, c.reason, c.again, diff)
			}
		})
	}
}

func refusal(r *rand.Rand) Refusal { return []Refusal{Full, NotServed, Rejected}[r.IntN(3)] }

// rounds returns how many random cases a test tries. make nightly tries n, and make check a fifth.
func rounds(n int) int {
	if os.Getenv("NIGHTLY") != "" {
		return n
	}
	return n / 5
}

func randomTarget(r *rand.Rand, key string) Target {
	t := Target{Key: key, Ready: r.IntN(8) > 0, Unschedulable: r.IntN(5) == 0}
	if r.IntN(6) > 0 {
		t.Location = "default"
	}
	if r.IntN(3) == 0 {
		t.Unreachable = now.Add(-time.Duration(r.IntN(240)) * time.Second)
		t.Fenced, t.Confirmed, t.Paced = r.IntN(4) == 0, r.IntN(4) == 0, r.IntN(4) == 0
		if r.IntN(2) == 0 {
			t.LeaseEnd = t.Unreachable
		}
	} else {
		t.AgentLost, t.Cleaning = r.IntN(8) == 0, r.IntN(8) == 0
	}
	if r.IntN(6) == 0 {
		t.Refuses = refusal(r)
		if t.Refuses != Rejected {
			t.RefusesUntil = now.Add(time.Duration(r.IntN(120)-60) * time.Second)
		}
	}
	if r.IntN(5) == 0 {
		t.Taints = []corev1.Taint{{Key: "some", Effect: []corev1.TaintEffect{corev1.TaintEffectNoExecute, corev1.TaintEffectNoSchedule}[r.IntN(2)]}}
	}
	return t
}

func randomSnapshot(r *rand.Rand) Snapshot {
	n := r.Int32N(30)
	s := Snapshot{ID: fmt.Sprint(r.Uint32()), Replicas: &n, Now: now, Hold: r.IntN(6) == 0}
	s.Policy = Policy{Min: r.Int32N(3), Targets: r.IntN(4), Strategy: []scheduling.StrategyType{scheduling.Auto, scheduling.Divided, scheduling.Single}[r.IntN(3)]}
	if r.IntN(4) == 0 {
		s.Policy.Max = 1 + r.Int32N(10)
	}
	for i := range r.IntN(6) {
		key := string(rune('a' + i))
		if r.IntN(8) > 0 {
			s.Targets = append(s.Targets, randomTarget(r, key))
		}
		if r.IntN(2) == 0 {
			p := part(key, r.Int32N(20), []workload.AssignmentPhase{workload.Active, workload.Active, workload.Evicting, workload.Removing}[r.IntN(4)])
			p.Applied, p.Gone = r.IntN(3) > 0, r.IntN(3) == 0
			p.Available = r.Int32N(*p.Replicas + 1)
			if p.Applied && r.IntN(2) == 0 {
				p.Available = *p.Replicas
			}
			if r.IntN(6) == 0 {
				p.Refused, p.Applied, p.Available, p.Gone = refusal(r), false, 0, false
			}
			s.Parts = append(s.Parts, p)
		}
	}
	return s
}

// Rules I1, I3, I4 and I6 of the design, for snapshots of every kind.
func TestDecideHoldsItsPromises(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range rounds(100_000) {
		s := randomSnapshot(r)
		d := Decide(s)
		fail := func(why string) {
			t.Fatalf("%s\nsnapshot %+v\ndecision %v %q", why, s, short(d), d.Reason)
		}
		active, before := int64(0), map[string]Part{}
		for _, p := range s.Parts {
			before[p.Key] = p
		}
		enough := true // what is active runs
		for _, a := range d.Targets {
			if a.Phase == workload.Active {
				if p := before[a.Key]; p.Phase == workload.Removing && !p.Gone {
					fail("I3: a target counts that still removes what it had")
				}
				active += int64(*a.Replicas)
				enough = enough && before[a.Key].Applied && before[a.Key].Phase != workload.Removing && before[a.Key].Available >= *a.Replicas
			}
		}
		switch {
		case d.Reason == "" && active != int64(*s.Replicas):
			fail("I1: the sum is not what is wanted")
		case active > int64(*s.Replicas):
			fail("I1: more than wanted")
		}
		for _, p := range s.Parts {
			i := slices.IndexFunc(d.Targets, func(a workload.AssignedTarget) bool { return a.Key == p.Key })
			removed := i < 0 || d.Targets[i].Phase == workload.Removing
			if p.Phase == workload.Removing || !removed {
				continue
			}
			if d.Reason != "" {
				fail("I4: a part is removed though the workload is not scheduled")
			}
			if !enough || !slices.ContainsFunc(d.Targets, func(a workload.AssignedTarget) bool { return a.Phase == workload.Active }) {
				fail("I3: a part is removed before its replacements are available")
			}
		}
		if s.Hold {
			for _, tg := range s.Targets {
				if !tg.Fenced && !tg.Confirmed && slices.ContainsFunc(d.Targets, func(a workload.AssignedTarget) bool {
					return a.Key == tg.Key && a.Reason == string(Lost) && before[a.Key].Phase == workload.Active
				}) {
					fail("I6: a target is given up while most are unreachable")
				}
			}
		}
	}
}

// settle decides until nothing changes: all targets do at once as they are told.
func settle(t *testing.T, s Snapshot) []workload.AssignedTarget {
	t.Helper()
	for range 10 {
		d := Decide(s)
		var next []Part
		for _, a := range d.Targets {
			p := Part{AssignedTarget: a, Applied: true, Gone: a.Phase == workload.Removing}
			if a.Replicas != nil {
				p.Available = *a.Replicas
			}
			next = append(next, p)
		}
		if cmp.Equal(next, s.Parts) {
			return d.Targets
		}
		s.Parts = next
	}
	t.Fatalf("does not settle: %+v", s)
	return nil
}

// Decisions come to rest, and do not depend on the order of targets and parts.
func TestDecideSettles(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range rounds(20_000) {
		s := randomSnapshot(r)
		settle(t, s)
		other := s
		other.Targets, other.Parts = slices.Clone(s.Targets), slices.Clone(s.Parts)
		r.Shuffle(len(other.Targets), func(i, j int) { other.Targets[i], other.Targets[j] = other.Targets[j], other.Targets[i] })
		r.Shuffle(len(other.Parts), func(i, j int) { other.Parts[i], other.Parts[j] = other.Parts[j], other.Parts[i] })
		if diff := cmp.Diff(Decide(s), Decide(other)); diff != "" {
			t.Fatalf("depends on the order: %s", diff)
		}
	}
}

// A target that is lost and returns moves its own part only.
func TestOneLostTargetMovesOnlyItsPart(t *testing.T) {
	replicas := int32(12)
	s := Snapshot{ID: "x", Replicas: &replicas, Now: now, Targets: []Target{target("a"), target("b"), target("c")}}
	for _, a := range settle(t, s) {
		s.Parts = append(s.Parts, part(a.Key, *a.Replicas, a.Phase))
	}
	s.Targets[1].Unreachable = now.Add(-time.Hour)
	d := Decide(s)
	if diff := cmp.Diff([]string{"a:6:Active", "b:4:Evicting", "c:6:Active"}, short(d)); diff != "" {
		t.Error(diff)
	}
}

// Equal workloads with one replica spread over equal targets.
func TestTies(t *testing.T) {
	one, counts := int32(1), map[string]int{}
	for i := range 3000 {
		d := Decide(Snapshot{ID: fmt.Sprint("workload", i), Replicas: &one, Now: now, Targets: []Target{target("a"), target("b"), target("c")}})
		counts[d.Targets[0].Key]++
	}
	for key, n := range counts {
		if n < 900 || n > 1100 {
			t.Errorf("%s has %d of 3000", key, n)
		}
	}
}
