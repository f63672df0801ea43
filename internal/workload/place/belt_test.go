package place

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

func lostTargets(all, lost int) (targets []Target) {
	for i := range all {
		t := target(fmt.Sprint("t", i))
		if i < lost {
			t.Unreachable = now.Add(-time.Minute)
		}
		targets = append(targets, t)
	}
	return targets
}

func TestHold(t *testing.T) {
	for _, c := range []struct {
		targets, unreachable int
		want                 bool
	}{{1, 0, false}, {1, 1, true}, {2, 1, false}, {2, 2, true}, {6, 3, false}, {6, 4, true}, {5, 3, true}, {3, 2, true}, {0, 0, false}} {
		if got := Hold(lostTargets(c.targets, c.unreachable)); got != c.want {
			t.Errorf("Hold: %d of %d: %v", c.unreachable, c.targets, got)
		}
	}
	fenced := lostTargets(6, 4)
	fenced[0].Fenced, fenced[1].Confirmed = true, true
	if Hold(fenced) {
		t.Error("targets that are known to be gone count")
	}
	unborn := lostTargets(8, 3)
	for i := range unborn[4:] {
		unborn[4+i].Ready = false
	}
	if !Hold(unborn) {
		t.Error("targets that have never answered count")
	}
}

// TestToleration expects that a target that did not answer before the server knew of it counts as lost since then, and
// that no tenant tolerates a drain.
func TestToleration(t *testing.T) {
	lost, drained := target("a"), target("a")
	lost.Unreachable = now.Add(-time.Hour)
	drained.Taints = []corev1.Taint{{Key: workload.DrainTaint, Effect: corev1.TaintEffectNoExecute, TimeAdded: &metav1.Time{Time: now.Add(-time.Minute)}}}
	all := []corev1.Toleration{{Key: workload.DrainTaint, Operator: corev1.TolerationOpExists}, {Operator: corev1.TolerationOpExists}}
	for _, c := range []struct {
		of          Target
		known       time.Time
		tolerations []corev1.Toleration
		exclusive   bool
		want        []string
		again       time.Duration
	}{
		{of: lost, want: []string{"a:1:Evicting", "b:1:Active"}},
		{of: lost, known: now.Add(-time.Minute), want: []string{"a:1:Evicting", "b:1:Active"}},
		{of: lost, known: now.Add(-20 * time.Second), want: []string{"a:1:Active"}, again: 40 * time.Second},
		{of: lost, known: now.Add(-20 * time.Second), exclusive: true, want: []string{"a:1:Active"}, again: 100 * time.Second},
		{of: drained, tolerations: all[:1], want: []string{"a:1:Evicting", "b:1:Active"}},
		{of: drained, tolerations: all[1:], want: []string{"a:1:Evicting", "b:1:Active"}},
	} {
		d := Decide(Snapshot{ID: "x", Replicas: new(int32(1)), Targets: []Target{c.of, target("b")}, Parts: []Part{part("a", 1, workload.Active)}, Known: c.known, Now: now,
			Policy: Policy{Tolerations: c.tolerations, Exclusive: c.exclusive}})
		if got := short(d); !slices.Equal(got, c.want) || d.Again != c.again {
			t.Errorf("%+v: got %v, again in %v", c, got, d.Again)
		}
	}
}

func TestRateOf(t *testing.T) {
	tenth := Rate{Normal().PerSecond / 10, Normal().Burst / 10}
	for _, c := range []struct {
		all, lost int
		want      Rate
	}{{3, 1, Normal()}, {3, 2, tenth}, {2, 1, Normal()}, {4, 2, Normal()}, {5, 3, tenth}, {6, 3, Normal()}, {6, 4, tenth}, {3, 3, Normal()}} {
		in := lostTargets(c.all, c.lost)
		for i := range in {
			in[i].Domain = "zone a"
		}
		in = append(in, lostTargets(9, 1)...) // of another domain
		if got := RateOf(in, "zone a", Normal()); got != c.want {
			t.Errorf("%d of %d: %v, want %v", c.lost, c.all, got, c.want)
		}
	}
}

// In no period do more permits go out than the burst and what the rate adds; and none is lost for
// those that come often.
func TestBucketHoldsItsRate(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for range rounds(200) {
		rate := Rate{1 + 20*r.Float64(), float64(1 + r.IntN(60))}
		var b Bucket
		var taken []time.Time
		at := now
		for range 2000 {
			at = at.Add(time.Duration(r.Int64N(int64(time.Second / 4))))
			var ok bool
			if b, ok = b.Take(rate, at); ok {
				taken = append(taken, at)
			}
		}
		for i := range taken {
			for j := i; j < len(taken); j += 1 + r.IntN(50) {
				if most := rate.Burst + taken[j].Sub(taken[i]).Seconds()*rate.PerSecond + 1e-6; float64(j-i+1) > most {
					t.Fatalf("%d permits in %v, at most %v", j-i+1, taken[j].Sub(taken[i]), most)
				}
			}
		}
		if rate.PerSecond < 4 { // there are 8 tries in a second
			if least := at.Sub(now).Seconds() * rate.PerSecond * 0.6; float64(len(taken)) < least {
				t.Fatalf("%d permits, at least %v", len(taken), least)
			}
		}
	}
}

// Workloads that wait take about as long as the rate says, and do not try much more often than they
// must.
func TestTurn(t *testing.T) {
	const workloads = 1000
	due, tries := map[string]time.Time{}, 0
	for i := range workloads {
		due[fmt.Sprint("workload", i)] = now
	}
	var b Bucket
	at := now
	for ; len(due) > 0; at = at.Add(10 * time.Millisecond) {
		for id, when := range due {
			if when.After(at) {
				continue
			}
			tries++
			var ok bool
			if b, ok = b.Take(Normal(), at); ok {
				delete(due, id)
			} else {
				due[id] = at.Add(Turn(Normal(), id, len(due)))
			}
		}
	}
	if took := at.Sub(now).Seconds(); took < 95 || took > 140 {
		t.Errorf("took %v s; the rate allows 95", took)
	}
	if tries > 6*workloads {
		t.Errorf("%d tries", tries)
	}
}
