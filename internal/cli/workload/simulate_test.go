package workload

import (
	"testing"

	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
)

// TestOutcome prints in one line what a review says of a workload.
func TestOutcome(t *testing.T) {
	part := func(location string, now, next int32) scheduling.ReviewedLocation {
		l := scheduling.ReviewedLocation{Location: location}
		if now > 0 {
			l.Phase, l.Replicas = "Active", new(now)
		}
		if next > 0 {
			l.NextPhase, l.NextReplicas = "Active", new(next)
		}
		return l
	}
	whole := func(location, phase, next string) scheduling.ReviewedLocation {
		return scheduling.ReviewedLocation{Location: location, Phase: phase, NextPhase: next}
	}
	added := part("new", 0, 5)
	added.Added = true
	replicas := func(wants int32, reason string, at ...scheduling.ReviewedLocation) scheduling.ReviewedWorkload {
		return scheduling.ReviewedWorkload{Replicas: new(wants), Reason: reason, Message: "no room", Locations: at}
	}
	for _, c := range []struct {
		of   scheduling.ReviewedWorkload
		want string
	}{
		{replicas(10, "", part("a", 5, 5), part("b", 5, 5)), ""},
		{replicas(10, "", part("a", 5, 10), part("b", 5, 0)), "5 replicas move to a, they fit"},
		{replicas(4, "", part("a", 3, 2), part("b", 1, 2)), "1 replica moves to b, it fits"},
		{replicas(15, "NoFit", part("a", 5, 5), part("b", 5, 5)), "not fully placed: NoFit: no room"},
		{replicas(15, "", part("a", 5, 5), part("b", 5, 5), added), "5 replicas begin at new (added), they fit"},
		{replicas(5, "", added), "5 replicas begin at new (added), they fit"},
		{replicas(15, "NoFit", part("a", 5, 0), part("b", 5, 6), added), "6 replicas move to b, new (added); not fully placed: NoFit: no room"},
		{scheduling.ReviewedWorkload{Locations: []scheduling.ReviewedLocation{whole("a", "Active", ""), whole("b", "", "Active")}}, "it moves to b, it fits"},
		{scheduling.ReviewedWorkload{Locations: []scheduling.ReviewedLocation{whole("a", "Active", "Active"), whole("b", "", "Active")}}, "it begins at b, it fits"},
		{scheduling.ReviewedWorkload{Locations: []scheduling.ReviewedLocation{whole("a", "Active", "Active"), whole("b", "", "")}}, ""},
	} {
		if got := outcome(c.of); got != c.want {
			t.Errorf("the outcome is %q, want %q", got, c.want)
		}
	}
}
