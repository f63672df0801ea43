package place

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// Settle arrives at a decision that the scheduler repeats, without more than what is wanted, and
// without giving anything away for nothing.
func TestSettle(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range rounds(20_000) {
		s := randomSnapshot(r)
		d := Settle(s)
		after := s
		after.Parts, after.Now = applied(s, d), now.Add(time.Hour)
		if diff := cmp.Diff(short(d), short(Decide(after))); diff != "" {
			t.Fatalf("the scheduler goes on: %s\nsnapshot %+v", diff, s)
		}
		active := int64(0)
		for _, a := range d.Targets {
			if a.Phase == workload.Active {
				active += int64(*a.Replicas)
			}
		}
		if active > int64(*s.Replicas) || d.Reason == "" && active != int64(*s.Replicas) {
			t.Fatalf("%d replicas of %d, reason %q\nsnapshot %+v", active, *s.Replicas, d.Reason, s)
		}
		for _, p := range s.Parts {
			stays := slices.ContainsFunc(d.Targets, func(a workload.AssignedTarget) bool { return a.Key == p.Key && a.Phase != workload.Removing })
			if p.Phase != workload.Removing && !stays && d.Reason != "" {
				t.Fatalf("a part is given away though not all fits\nsnapshot %+v", s)
			}
		}
	}
}
