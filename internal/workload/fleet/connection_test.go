package fleet

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/unforked/kcp"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/network/dial"
	"github.com/unforked/kcp/internal/workload/physical"
)

// The time in which the server could not send probes is not time in which the physical cluster did not answer.
func TestBusyServer(t *testing.T) {
	target := workload.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: "east", Annotations: map[string]string{core.ClusterAnnotation: "compute"}}}
	target.Status.LastSyncerHeartbeatTime = &metav1.Time{Time: now()}
	target.Status.Conditions.Set(conditions.Condition{Type: conditions.Ready, Status: metav1.ConditionTrue})
	targets := kcp.NewKind[*workload.SyncTarget]("targets", &cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			return &workload.SyncTargetList{Items: []workload.SyncTarget{target}}, nil
		},
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil },
	}, nil)
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); targets.Run(ctx) }()
	t.Cleanup(func() { end(); <-ended })
	<-targets.Ready()

	at := time.Now()
	busy, silent := physical.Unanswered("no answer", dial.ErrBusy), physical.Unanswered("no answer", context.DeadlineExceeded)
	c := &connection{fleet: &fleet{compute: "compute", manager: &manager{options: fleetOptions()}, term: &term{targets: targets}}, name: "east",
		seen: at.Add(-time.Hour), alive: at.Add(-time.Hour), asked: at.Add(-time.Hour + 10*time.Second)}
	c.observe(t.Context(), nil, busy) // writes nothing
	for name, last := range map[string]time.Time{"seen": c.seen, "alive": c.alive} {
		if silence := time.Since(last); silence < 9*time.Second || silence > 40*time.Second {
			t.Errorf("%s counts %s of silence, and the server asked for 10s of the hour", name, silence)
		}
	}
	if physical.Lives(busy) {
		t.Error("a probe that was not sent is a sign of life")
	}
	if next, _ := c.observed(&target, nil, silent, time.Now()); next.UnreachableSince != nil {
		t.Error("the physical cluster counts as lost after its first silence")
	}
	if next, _ := c.observed(&target, nil, silent, time.Now().Add(time.Minute)); next.UnreachableSince == nil {
		t.Error("the physical cluster never counts as lost")
	}
}

// The status of a target that does not answer any more has its last heartbeat, although heartbeats are written seldom.
func TestLastHeartbeat(t *testing.T) {
	target := &workload.SyncTarget{}
	target.Status.LastSyncerHeartbeatTime = &metav1.Time{Time: now()}
	target.Status.Conditions.Set(conditions.Condition{Type: conditions.Ready, Status: metav1.ConditionTrue})
	heard := now().Add(50 * time.Second)
	late := heard.Add(time.Minute)
	c := &connection{fleet: &fleet{manager: &manager{options: fleetOptions()}}, seen: heard, alive: heard, heard: heard, written: now()}
	silent := physical.Unanswered("no answer", context.DeadlineExceeded)
	next, changed := c.observed(target, nil, silent, late)
	if !changed || next.UnreachableSince == nil || !next.LastSyncerHeartbeatTime.Time.Equal(heard) {
		t.Errorf("changed %v, the last heartbeat is %v, want %v", changed, next.LastSyncerHeartbeatTime, heard)
	}
	c.heard = time.Time{} // the server has restarted, and has heard nothing since
	if next, _ := c.observed(target, nil, silent, late); !next.LastSyncerHeartbeatTime.Time.Equal(now()) {
		t.Errorf("a heartbeat at %v that there was not", next.LastSyncerHeartbeatTime)
	}
}
