package place

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// A fencedCluster is a physical cluster with an agent that stops the workload when its lease has run
// out. Times are seconds.
type fencedCluster struct {
	connected, reported, running bool
	beat                         int // of the agent, on its own clock
	seen                         int // by the server, which may be late
	stopping                     int // when the workload has ended; 0 if it does not
	confirmed                    int // when the agent writes what the server has confirmed; 0 if it does not
}

const (
	simulatedLease = 40
	simulatedGrace = 30
)

// A fencedWorld has three physical clusters, a server, and a workload that one of them runs.
type fencedWorld struct {
	r        *rand.Rand
	now      int
	clusters map[string]*fencedCluster
	parts    []workload.AssignedTarget
	begun    int // decisions that began the workload anew
}

// The agents of a simulated world lose and find the server at random times, caches are late, and the
// server decides at random times. The workload never runs twice.
func TestLeasesFence(t *testing.T) {
	begun := 0
	for seed := range uint64(rounds(300)) {
		w := &fencedWorld{r: rand.New(rand.NewPCG(seed, 13)), clusters: map[string]*fencedCluster{}}
		for _, key := range []string{"a", "b", "c"} {
			w.clusters[key] = &fencedCluster{connected: true}
		}
		for w.now = 1; w.now < 3000; w.now++ {
			for _, key := range []string{"a", "b", "c"} {
				w.step(w.clusters[key], key)
			}
			if w.r.IntN(3) == 0 {
				w.decide()
			}
			if n := w.running(); n > 1 {
				t.Fatalf("seed %d, second %d: %d run", seed, w.now, n)
			}
		}
		begun += w.begun
	}
	if begun < 2*rounds(300) {
		t.Errorf("it moved %d times: the simulation shows nothing", begun)
	}
}

func (w *fencedWorld) running() (n int) {
	for _, c := range w.clusters {
		if c.running {
			n++
		}
	}
	return n
}

// step is a second of a physical cluster.
func (w *fencedWorld) step(c *fencedCluster, key string) {
	if w.r.IntN(150) == 0 {
		c.connected = !c.connected
	}
	if c.stopping != 0 && w.now >= c.stopping {
		c.running, c.stopping = false, 0
	}
	lapsed := w.now-c.beat > simulatedLease
	if c.connected && w.now%10 == 0 {
		c.beat, lapsed = w.now, false
	}
	i := slices.IndexFunc(w.parts, func(p workload.AssignedTarget) bool { return p.Key == key })
	wanted := i >= 0 && w.parts[i].Phase != workload.Removing
	switch {
	case lapsed:
		c.confirmed = 0
		c.stop(w)
	case c.confirmed != 0 && w.now >= c.confirmed:
		c.running, c.stopping, c.confirmed = true, 0, 0
	case c.confirmed != 0 || !c.connected || w.r.IntN(3) > 0:
	case wanted && !c.running:
		c.reported, c.confirmed = true, w.now+w.r.IntN(4) // the write comes later than the answer
	case !wanted && c.running:
		c.stop(w)
	case !wanted:
		c.reported = false
	}
}

func (c *fencedCluster) stop(w *fencedWorld) {
	if c.running && c.stopping == 0 {
		c.stopping = w.now + w.r.IntN(simulatedGrace)
	}
}

// decide is a decision of the server. Its cache of heartbeats may be old, but the server reads the
// last heartbeat before it concludes from an expired lease that the workload has stopped.
func (w *fencedWorld) decide() {
	at := func(second int) time.Time { return now.Add(time.Duration(second) * time.Second) }
	s := Snapshot{ID: "x", Now: at(w.now), Replicas: new(int32(1)), Policy: Policy{Exclusive: true, StopsWithin: simulatedGrace * time.Second,
		Tolerations: []corev1.Toleration{{Key: workload.UnreachableTaint, Operator: corev1.TolerationOpExists, TolerationSeconds: new(int64(1))}}}}
	for _, key := range []string{"a", "b", "c"} {
		c, t := w.clusters[key], target(key)
		if w.r.IntN(4) > 0 {
			c.seen = c.beat
		}
		if lost := c.seen + simulatedLease; w.now > lost {
			t.Unreachable, t.LeaseEnd = at(lost), at(lost)
		}
		if c.seen != c.beat && slices.ContainsFunc(w.parts, func(p workload.AssignedTarget) bool { return p.Key == key && p.Phase == workload.Removing }) {
			t.LeaseEnd = time.Time{}
		}
		s.Targets = append(s.Targets, t)
	}
	for _, p := range w.parts {
		c := w.clusters[p.Key]
		s.Parts = append(s.Parts, Part{AssignedTarget: p, Applied: c.running, Gone: !c.reported})
	}
	d := Decide(s)
	for _, t := range d.Targets {
		if t.Phase == workload.Active && !slices.ContainsFunc(w.parts, func(p workload.AssignedTarget) bool { return p.Key == t.Key }) {
			w.begun++
		}
	}
	w.parts = d.Targets
}
