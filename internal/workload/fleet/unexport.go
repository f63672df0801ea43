package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp"
	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// A user may delete the export of a compute workspace alone. Its finalizer holds up the deletion until the physical
// clusters have removed the copies of all workloads, as with the deletion of the workspace.

// endExport makes the deletion of the export go on if no SyncTarget has copies any more, or the time for that is over.
// The loop calls it for each SyncTarget.
func (f *fleet) endExport(ctx context.Context, t *workload.SyncTarget, e *apis.APIExport) error {
	waits := func(of *workload.SyncTarget) bool { return !f.abandoned(of) && f.holds(of, true) }
	err := f.exports.Say(ctx, e, conditions.Condition{Type: workload.CopiesRemoved, Status: metav1.ConditionFalse, Severity: conditions.SeverityInfo, Reason: workload.RemovingCopies,
		Message: fmt.Sprintf("the physical clusters remove the copies of workloads; the condition %s of the SyncTargets says which do; from %s on, the deletion does not wait for them", workload.CopiesRemoved, f.deadline().UTC().Format(time.RFC3339))})
	switch {
	case err != nil && !f.overdue():
		return err
	case waits(t):
		return kcp.After(soon)
	case !f.abandoned(t):
		if err := f.untellRetirement(ctx, t); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(f.term.targets.List(f.compute), waits) {
		return nil // the last one makes the deletion go on
	}
	if !f.overdue() { // not even consumers that refuse the writes of the server hold it up then
		if done, err := f.dissolved(ctx); err != nil || !done {
			return cmp.Or(err, kcp.After(soon))
		}
	}
	return f.exports.Release(ctx, f.compute)
}

// resume places objects again if there is a SyncTarget and an export again, and holds the export.
func (f *fleet) resume(ctx context.Context, t *workload.SyncTarget, e *apis.APIExport) error {
	if err := f.exports.Hold(ctx, e); err != nil {
		return err
	}
	f.mu.Lock()
	again := f.retirement.exportOnly
	if again {
		f.retirement = retirement{}
	}
	f.mu.Unlock()
	if again {
		f.scheduler.Place()
		f.scheduler.Turn()
		f.reviewPlacements()
		for _, of := range f.term.targets.List(f.compute) {
			f.inventory.LearnTarget(of.Name) // it is abandoned no more
		}
	}
	if f.scheduler.Resume() {
		f.reviewProfiles()
	}
	if f.scheduler.Retiring() {
		return nil
	}
	return f.untellRetirement(ctx, t)
}

// untellRetirement removes the condition of a SyncTarget about the deletion of an export.
func (f *fleet) untellRetirement(ctx context.Context, t *workload.SyncTarget) error {
	next := t.Status.DeepCopy()
	next.Conditions = slices.DeleteFunc(next.Conditions, func(c conditions.Condition) bool { return c.Type == workload.CopiesRemoved })
	if len(next.Conditions) == len(t.Status.Conditions) {
		return nil
	}
	return f.saveStatus(ctx, t, next)
}

// exportOnly reports whether the fleet ends with its export, and the compute workspace stays.
func (f *fleet) exportOnly() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.retirement.exportOnly
}

// used returns the logical clusters that have SyncTargets.
func (m *manager) used(ctx context.Context) (map[kcp.ClusterName]bool, error) {
	all, err := m.writeTargets.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	used := map[kcp.ClusterName]bool{}
	for i := range all.Items {
		used[kcp.KeyOf(&all.Items[i]).Cluster] = true
	}
	return used, nil
}
