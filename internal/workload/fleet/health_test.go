package fleet

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/physical"
	"github.com/unforked/kcp/internal/workload/place"
)

func fleetOptions() Options { return Options{Renew: 10 * time.Second, Expire: 40 * time.Second} }

// A fence is about the outage that its operator saw, and about no other one.
func TestFence(t *testing.T) {
	outage := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	next := metav1.NewTime(outage.Add(time.Hour))
	for name, c := range map[string]struct {
		since, fence *metav1.Time
		was          bool // the condition Fenced
		want         place.Target
	}{
		"answers":                        {},
		"answers, with an old fence":     {fence: &outage},
		"lost":                           {since: &outage, want: place.Target{Unreachable: outage.Time}},
		"fenced":                         {since: &outage, fence: &outage, want: place.Target{Unreachable: outage.Time, Fenced: true}},
		"a fence of another outage":      {since: &next, fence: &outage, was: true, want: place.Target{Unreachable: next.Time}},
		"a fence of an outage to come":   {since: &outage, fence: &next, want: place.Target{Unreachable: outage.Time}},
		"is back and has to be cleaned":  {fence: &outage, was: true, want: place.Target{Cleaning: true}},
		"is lost again before it is so.": {since: &next, was: true, want: place.Target{Unreachable: next.Time}},
	} {
		s := &workload.SyncTarget{Status: workload.SyncTargetStatus{UnreachableSince: c.since, LastSyncerHeartbeatTime: &outage}}
		if c.fence != nil {
			s.Spec.Fence = &workload.SyncTargetFence{UnreachableSince: *c.fence}
		}
		if c.was {
			setFenced(&s.Status.Conditions, true, false)
		}
		c.want.Domain = "/"
		var got place.Target
		if fleetOptions().health(s, &got); got.Unreachable != c.want.Unreachable || got.Fenced != c.want.Fenced || got.Cleaning != c.want.Cleaning {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestConditionsOfTheBelt(t *testing.T) {
	var all conditions.Conditions
	if setFenced(&all, false, false) || setHeld(&all, false) || len(all) > 0 {
		t.Errorf("a target that was never fenced has conditions: %v", all)
	}
	for _, c := range []struct {
		fenced, cleans bool
		status         metav1.ConditionStatus
		reason         string
	}{{true, false, metav1.ConditionTrue, workload.ByOperator}, {false, true, metav1.ConditionTrue, workload.CleaningUp}, {false, false, metav1.ConditionFalse, workload.NotFenced}} {
		if !setFenced(&all, c.fenced, c.cleans) || setFenced(&all, c.fenced, c.cleans) {
			t.Errorf("%+v: not once", c)
		}
		if got := all.Get(workload.Fenced); got.Status != c.status || got.Reason != c.reason {
			t.Errorf("%+v: %+v", c, got)
		}
	}
	if !setHeld(&all, true) || !all.IsTrue(workload.EvictionsHeld) || !setHeld(&all, false) || all.IsTrue(workload.EvictionsHeld) {
		t.Errorf("%+v", all)
	}
}

// A target is unreachable once there is no sign of life for long enough, and only then.
func TestObserved(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	long, since := now.Add(-time.Hour), metav1.NewTime(now.Add(-time.Minute))
	for name, c := range map[string]struct {
		alive  time.Time
		since  *metav1.Time
		reason string // empty means that it answers
		want   place.Target
	}{
		"answers":                      {alive: now},
		"answers again":                {alive: now, since: &since},
		"silent for a moment":          {alive: now.Add(-20 * time.Second), reason: workload.Unreachable, want: place.Target{AgentLost: true}},
		"silent for long":              {alive: long, reason: workload.Unreachable, want: place.Target{Unreachable: now}},
		"still silent":                 {alive: long, since: &since, reason: workload.Unreachable, want: place.Target{Unreachable: since.Time}},
		"down by probes":               {alive: long, reason: workload.DownByProbes, want: place.Target{Unreachable: now, Confirmed: true}},
		"its agent is lost":            {alive: now, reason: workload.AgentLost, want: place.Target{AgentLost: true}},
		"its agent is lost after all":  {alive: now, since: &since, reason: workload.AgentLost, want: place.Target{AgentLost: true}},
		"it rejects the credentials":   {alive: now, reason: workload.Unauthorized, want: place.Target{AgentLost: true}},
		"the kubeconfig is gone":       {alive: now, reason: workload.KubeconfigInvalid, want: place.Target{AgentLost: true}},
		"another cluster answers":      {alive: long, reason: workload.AnotherCluster, want: place.Target{Unreachable: now}},
		"silent, when it was rejected": {alive: now.Add(-20 * time.Second), reason: workload.Unreachable, want: place.Target{AgentLost: true}},
	} {
		s := &workload.SyncTarget{Status: workload.SyncTargetStatus{UnreachableSince: c.since, LastSyncerHeartbeatTime: &since}}
		of := &connection{fleet: &fleet{manager: &manager{options: fleetOptions()}}, seen: long, alive: c.alive}
		var err error
		if c.reason != "" {
			err = physical.Because(c.reason, errors.New("why"))
		}
		if next, _ := of.observed(s, nil, err, now); next != nil {
			s.Status = *next
		}
		var got place.Target
		if fleetOptions().health(s, &got); !got.Unreachable.Equal(c.want.Unreachable) || got.AgentLost != c.want.AgentLost || got.Confirmed != c.want.Confirmed {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
