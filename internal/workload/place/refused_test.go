package place

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// A part that a target does not create goes elsewhere, unless too many targets have rejected the workload.
func TestRefusedParts(t *testing.T) {
	unserved, rejected := part("a", 5, workload.Active), part("a", 5, workload.Active)
	unserved.Applied, unserved.Available, unserved.Refused = false, 0, NotServed
	rejected.Applied, rejected.Available, rejected.Refused = false, 0, Rejected
	knows := target("b")
	knows.Refuses = Rejected
	var many []Target // that rejected the workload
	for i := range workload.MaxRejections {
		of := target(fmt.Sprint("many", i))
		of.Refuses = Rejected
		many = append(many, of)
	}
	accepted := part("c", 5, workload.Active)
	for name, c := range map[string]struct {
		targets []Target
		parts   []Part
		want    []string
		reason  string
	}{
		"not served":                {targets: []Target{target("a"), target("b")}, parts: []Part{unserved}, want: []string{"a:5:Evicting", "b:5:Active"}},
		"rejected":                  {targets: []Target{target("a"), target("b")}, parts: []Part{rejected}, want: []string{"a:5:Evicting", "b:5:Active"}},
		"rejected by both":          {targets: []Target{target("a"), knows}, parts: []Part{rejected}, want: []string{"a:5:Evicting"}, reason: NoTarget},
		"rejected by many":          {targets: append([]Target{target("a"), target("b")}, many...), parts: []Part{rejected}, want: []string{"a:5:Active"}},
		"rejected by many, not all": {targets: append([]Target{target("a"), target("c")}, many...), parts: []Part{rejected, accepted}, want: []string{"a:-1:Removing", "c:5:Active"}},
		"rejected by most":          {targets: append([]Target{target("a"), target("b")}, many[1:]...), parts: []Part{rejected}, want: []string{"a:5:Evicting", "b:5:Active"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decide(Snapshot{ID: "x", Replicas: new(int32(5)), Targets: c.targets, Parts: c.parts, Now: now})
			if diff := cmp.Diff(c.want, short(d)); diff != "" || d.Reason != c.reason {
				t.Errorf("reason %q, want %q\n%s", d.Reason, c.reason, diff)
			}
		})
	}
}

// A fleet does what is decided, but some of its targets do not create the workload.
type fleet struct {
	Snapshot
	refuses map[string]Refusal
}

// step makes the next decision, and does it.
func (f *fleet) step() Decision {
	for i := range f.Targets {
		of := &f.Targets[i]
		said := slices.ContainsFunc(f.Parts, func(p Part) bool { return p.Key == of.Key && p.Refused != "" })
		if said && of.Refuses == "" {
			if of.Refuses = f.refuses[of.Key]; of.Refuses != Rejected {
				of.RefusesUntil = now.Add(time.Minute)
			}
		}
	}
	d := Decide(f.Snapshot)
	f.Parts = nil
	for _, a := range d.Targets {
		p := Part{AssignedTarget: a, Gone: a.Phase == workload.Removing}
		if p.Refused = f.refuses[a.Key]; p.Refused == "" {
			p.Applied = true
			if a.Replicas != nil {
				p.Available = *a.Replicas
			}
		}
		f.Parts = append(f.Parts, p)
	}
	return d
}

// Rule I8 of the design: a workload that one of at most eight targets accepts runs at those that accept it.
func TestWorkloadsRunWhereTheyAreAccepted(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range rounds(2_000) {
		f := fleet{Snapshot{ID: fmt.Sprint(r.Uint32()), Replicas: new(r.Int32N(30)), Policy: Policy{Exclusive: r.IntN(2) == 0}, Now: now}, map[string]Refusal{}}
		n := 2 + r.IntN(workload.MaxRejections-1)
		for i := range n {
			key := string(rune('a' + i))
			f.Targets = append(f.Targets, target(key))
			if i > 0 && r.IntN(3) > 0 { // a accepts it
				f.refuses[key] = refusal(r)
			}
		}
		r.Shuffle(n, func(i, j int) { f.Targets[i], f.Targets[j] = f.Targets[j], f.Targets[i] })
		var d Decision
		for range 4 * n {
			d = f.step()
		}
		sum := int32(0)
		for _, a := range d.Targets {
			if f.refuses[a.Key] != "" {
				t.Fatalf("refusals %v, decision %v", f.refuses, short(d))
			}
			sum += *a.Replicas
		}
		if len(d.Targets) == 0 || sum != *f.Replicas || d.Reason != "" {
			t.Fatalf("refusals %v, decision %v %q", f.refuses, short(d), d.Reason)
		}
	}
}

// A workload that no target creates comes to rest, however many targets there are.
func TestRefusedEverywhereSettles(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for range rounds(300) {
		f := fleet{Snapshot{ID: fmt.Sprint(r.Uint32()), Replicas: new(1 + r.Int32N(30)), Policy: Policy{Exclusive: r.IntN(2) == 0}, Now: now}, map[string]Refusal{}}
		why := refusal(r)
		for i := range 1 + r.IntN(30) {
			f.Targets = append(f.Targets, target(fmt.Sprint("t", i)))
			f.refuses[f.Targets[i].Key] = why
		}
		var d Decision
		for range 4 * len(f.Targets) {
			d = f.step()
		}
		if next := f.step(); !cmp.Equal(d.Targets, next.Targets) {
			t.Fatalf("%d targets, %s: %v, then %v", len(f.Targets), why, short(d), short(next))
		}
		if why == Rejected && f.Policy.Exclusive && len(f.Parts) != 1 {
			t.Fatalf("parts %v", short(d))
		}
	}
}
