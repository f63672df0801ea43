package place

import (
	"fmt"
	"testing"
	"time"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// BenchmarkDecide measures the decision about a new workload, and about one of which a target is lost.
func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		var targets []Target
		for i := range n {
			targets = append(targets, target(fmt.Sprintf("t%d", i)))
		}
		replicas := int32(10)
		fresh := Snapshot{ID: "x", Replicas: &replicas, Targets: targets, Now: now}
		b.Run(fmt.Sprintf("new/%d", n), func(b *testing.B) { decide(b, fresh) })
		lost := fresh
		lost.Targets = append([]Target{}, targets...)
		for i := range 5 {
			lost.Parts = append(lost.Parts, part(targets[i].Key, 2, workload.Active))
		}
		lost.Targets[0].Unreachable = now.Add(-3 * time.Minute)
		b.Run(fmt.Sprintf("lost/%d", n), func(b *testing.B) { decide(b, lost) })
	}
}

func decide(b *testing.B, s Snapshot) {
	for b.Loop() {
		if d := Decide(s); len(d.Targets) == 0 {
			b.Fatal("no target")
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
}
