package fleet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/consumers"
)

// placementLoop writes the status of Placements.
func (f *fleet) placementLoop() kcp.Loop {
	return kcp.Loop{Name: "workload-placements", Do: f.placement, Slow: consumers.SlowWrites, On: []kcp.Source{
		{Subscribe: func(wake func(kcp.Key)) func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.placements = wake
			return nil
		}},
		// The older ones decide whether one applies.
		f.consumers.Placements.Wakes(func(p *scheduling.Placement) (keys []kcp.Key) {
			for _, of := range f.consumers.Placements.List(kcp.KeyOf(p).Cluster) {
				keys = append(keys, kcp.KeyOf(of))
			}
			return keys
		}),
		f.consumers.Assignments.Wakes(func(a *workload.Assignment) []kcp.Key {
			return []kcp.Key{{Cluster: kcp.KeyOf(a).Cluster, Name: a.Spec.Placement}}
		}),
		f.term.targets.Wakes(func(t *workload.SyncTarget) (keys []kcp.Key) {
			if kcp.KeyOf(t).Cluster == f.compute && t.Status.LastSyncerHeartbeatTime == nil {
				for _, p := range f.consumers.Placements.List("*") {
					keys = append(keys, kcp.KeyOf(p))
				}
			}
			return keys
		}),
	}}
}

func (f *fleet) placement(ctx context.Context, key kcp.Key) error {
	p := f.consumers.Placements.Get(key)
	if p == nil || p.DeletionTimestamp != nil {
		return nil
	}
	next := p.Status.DeepCopy()
	next.Phase = scheduling.Unbound
	state := conditions.Condition{Type: conditions.Ready, Status: metav1.ConditionTrue}
	targets, _, _ := f.inventory.For(p)
	selected := 0
	for _, t := range targets {
		if t.Location != "" {
			selected++
		}
	}
	older := f.consumers.Shadowing(p)
	switch {
	case f.scheduler.Retiring():
		state = conditions.Condition{Type: conditions.Ready, Status: metav1.ConditionFalse, Severity: conditions.SeverityError, Reason: workload.ComputeDeleted,
			Message: "the compute workspace, or its export, is being deleted or was deleted; bind another one"}
	case older != nil:
		state = conditions.Condition{Type: conditions.Ready, Status: metav1.ConditionFalse, Severity: conditions.SeverityError, Reason: scheduling.Shadowed,
			Message: fmt.Sprintf("Placement %q is older and selects all namespaces that this one selects, so it applies instead; change its spec.namespaceSelector, or delete it", older.Name)}
	case selected == 0:
		next.Phase = scheduling.Pending
		state = conditions.Condition{Type: conditions.Ready, Status: metav1.ConditionFalse, Severity: conditions.SeverityError, Reason: scheduling.NoLocation,
			Message: "spec.locationSelectors select no Location with a physical cluster; they match the labels of Locations in the compute workspace"}
	default:
		if rest := f.scans.Wait(key, time.Now()); rest > 0 {
			return kcp.After(rest) // each Assignment that changes wakes the key
		}
		for _, a := range f.consumers.Assignments.List(key.Cluster) {
			if a.Spec.Placement == p.Name {
				next.Phase = scheduling.Bound
				break
			}
		}
	}
	if !next.Conditions.Set(state) && next.Phase == p.Status.Phase {
		return nil
	}
	err := f.consumers.SavePlacementStatus(ctx, key, next)
	if f.scheduler.Retiring() && refuses(err) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.retirement.refusing != nil { // the retirement has not ended meanwhile
			f.retirement.refusing[key] = true
		}
	}
	return err
}

// reviewPlacements wakes the loop of Placements.
func (f *fleet) reviewPlacements() {
	f.mu.Lock()
	wake := f.placements
	f.mu.Unlock()
	if wake == nil {
		return
	}
	for _, p := range f.consumers.Placements.List("*") {
		wake(kcp.KeyOf(p))
	}
}

// placementsSayDeleted reports whether all Placements have the reason ComputeDeleted, except those whose workspaces
// refuse it. Later, the server does not reach them.
func (f *fleet) placementsSayDeleted() bool {
	f.mu.Lock()
	refusing := maps.Clone(f.retirement.refusing)
	f.mu.Unlock()
	return !slices.ContainsFunc(f.consumers.Placements.List("*"), func(p *scheduling.Placement) bool {
		c := p.Status.Conditions.Get(conditions.Ready)
		return p.DeletionTimestamp == nil && !refusing[kcp.KeyOf(p)] && (c == nil || c.Reason != workload.ComputeDeleted)
	})
}
