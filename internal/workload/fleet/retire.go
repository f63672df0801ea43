package fleet

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp"
	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/export"
	"github.com/unforked/kcp/internal/workload/objects"
)

// The deletion of a compute workspace deletes its SyncTargets, whose finalizers hold it up. Meanwhile its export and
// the rights of its agents are still there, so that the physical clusters can remove the copies of workloads.

// ends reports whether a logical cluster is being deleted, and nothing but its content holds that up.
func (m *manager) ends(ctx context.Context, c kcp.ClusterName) (bool, error) {
	l, err := m.logicalCluster(ctx, c)
	return err == nil && l.DeletionTimestamp != nil && l.Status.Phase == core.PhaseDeleting, err
}

func (m *manager) logicalCluster(ctx context.Context, c kcp.ClusterName) (*core.LogicalCluster, error) {
	cfg, err := m.server.Own(string(c))
	if err != nil {
		return nil, err
	}
	all, err := client.New[*core.LogicalCluster, *core.LogicalClusterList](cfg, string(c), core.GroupVersion.WithResource("logicalclusters"))
	if err != nil {
		return nil, err
	}
	return all.Get(ctx, core.LogicalClusterName, metav1.GetOptions{})
}

// A retirement is the end of a fleet with its compute workspace or its export. The lock of the fleet guards its fields.
type retirement struct {
	exportOnly bool             // the compute workspace stays
	began      time.Time        // on the first server
	here       time.Time        // on this one
	abandoned  map[string]bool  // keys of the SyncTargets that the deletion does not wait for any more
	refusing   map[kcp.Key]bool // Placements whose workspaces refuse their status
}

// beginRetirement makes the scheduler remove the copies of all workloads. The time for that begins when the first
// server began, as the export or the status of a SyncTarget says. ends is true if the compute
// workspace is being deleted, too.
func (f *fleet) beginRetirement(e *apis.APIExport, ends bool) {
	here := time.Now()
	began := here
	if export.Ending(e) {
		began = e.DeletionTimestamp.Time
	}
	defer f.reviewPlacements()
	for _, t := range f.term.targets.List(f.compute) {
		if c := t.Status.Conditions.Get(workload.CopiesRemoved); c != nil && c.LastTransitionTime.Time.Before(began) {
			began = c.LastTransitionTime.Time
		}
	}
	f.mu.Lock()
	if f.retirement.abandoned == nil { // no other worker was first
		f.retirement = retirement{exportOnly: export.Ending(e) && !ends, began: began, here: here, abandoned: map[string]bool{}, refusing: map[kcp.Key]bool{}}
	}
	f.mu.Unlock()
	f.scheduler.Retire()
}

// retire makes the fleet remove the copies of all workloads if the export is deleted, or a SyncTarget, nil if it is
// gone, is deleted with its compute workspace. It says so in the status of the SyncTarget. When the time is over, it says
// which copies remain, and abandons the SyncTarget.
func (f *fleet) retire(ctx context.Context, t *workload.SyncTarget, e *apis.APIExport) error {
	if t == nil || t.DeletionTimestamp == nil && !export.Ending(e) {
		return nil
	}
	if !f.scheduler.Retiring() {
		ends, err := f.ends(ctx, f.compute)
		if !ends && !export.Ending(e) || err != nil {
			return err
		}
		f.beginRetirement(e, ends)
		for _, of := range f.term.targets.List(f.compute) { // one of them may keep its copies
			f.inventory.LearnTarget(of.Name)
		}
	}
	if err := f.widen(ctx, t); err != nil {
		return err
	}
	if f.abandoned(t) || !f.holds(t, true) {
		return nil
	}
	deleted := "workspace"
	if f.exportOnly() {
		deleted = "export"
	}
	over := f.consumers.Known() && (fenced(t) || time.Now().After(f.deadline())) || f.overdue()
	c := conditions.Condition{Type: workload.CopiesRemoved, Status: metav1.ConditionFalse, Severity: conditions.SeverityInfo, Reason: workload.RemovingCopies,
		Message: fmt.Sprintf("the %s is being deleted, and the physical cluster removes the copies of workloads; from %s on, the deletion does not wait for it", deleted, f.deadline().UTC().Format(time.RFC3339))}
	if of, why := f.consumers.Refusal(f.keyOf(t)); why != "" {
		c.Severity = conditions.SeverityWarning
		c.Message = limit(fmt.Sprintf("%s; a removal is refused for %s %q in namespace %q of logical cluster %s: %s", c.Message, of.GroupResource, of.Key.Name, of.Key.Namespace, of.Key.Cluster, why))
	}
	if over {
		c.Severity, c.Reason, c.Message = conditions.SeverityError, workload.CopiesRemain, f.remain(t, true)
	}
	if err := f.tellRetirement(ctx, t, c); err != nil && (apierrors.IsConflict(err) || !f.overdue()) {
		return err
	}
	if over {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.retirement.abandoned != nil { // the retirement has not ended meanwhile
			f.retirement.abandoned[f.keyOf(t)] = true
		}
	}
	return nil
}

// widen turns the retirement of an export into that of its compute workspace if the workspace is deleted, too. The Events
// then go to its parent.
func (f *fleet) widen(ctx context.Context, t *workload.SyncTarget) error {
	if t.DeletionTimestamp == nil || !f.exportOnly() {
		return nil
	}
	ends, err := f.ends(ctx, f.compute)
	if err != nil || !ends {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.retirement.exportOnly = false
	return nil
}

// remain returns the message about the copies that a physical cluster may still have, with an example of them or
// without.
func (f *fleet) remain(t *workload.SyncTarget, example bool) string {
	all := f.consumers.Held(f.keyOf(t))
	what := "copies of workloads"
	if len(all) > 0 {
		what = fmt.Sprintf("copies of %d objects", len(all))
	}
	if len(all) > 0 && example {
		of, why := f.consumers.Refusal(f.keyOf(t))
		if why == "" {
			of = all[0]
		}
		what += fmt.Sprintf(", such as %s %q in namespace %q of logical cluster %s", of.GroupResource, of.Key.Name, of.Key.Namespace, of.Key.Cluster)
		if why != "" {
			what += " (" + why + ")"
		}
	}
	deleted := "its compute workspace"
	if f.exportOnly() {
		deleted = fmt.Sprintf("the export %q", workload.KubernetesExport)
	}
	return limit(fmt.Sprintf("physical cluster %q may still have %s: they were not removed before %s was deleted; to remove them, with their volume claims, run there: kubectl delete namespaces -l %s=%s",
		t.Name, what, deleted, workload.OwnerLabel, f.keyOf(t)))
}

// tellRetirement sets the condition of a SyncTarget. If copies remain, there is an Event before: after that, the
// SyncTarget and its workspace may be gone.
func (f *fleet) tellRetirement(ctx context.Context, t *workload.SyncTarget, c conditions.Condition) error {
	next := t.Status.DeepCopy()
	if !next.Conditions.Set(c) {
		return nil
	}
	if c.Reason == workload.CopiesRemain {
		klog.FromContext(ctx).Info("copies of workloads remain", "cluster", f.compute, "target", t.Name, "message", c.Message)
		// Readers of the parent workspace may know nothing of the consumers.
		if err := f.record(ctx, t, f.remain(t, false)); err != nil && !refuses(err) {
			return err
		}
	}
	return f.saveStatus(ctx, t, next)
}

// refuses reports whether a workspace takes no Event or status, such as one that is being deleted, or one with a webhook
// that fails.
func refuses(err error) bool { return objects.Refused(err) || apierrors.IsNotFound(err) }

// abandoned reports whether the deletion of the compute workspace does not wait for a SyncTarget any more. The server
// has said so before.
func (f *fleet) abandoned(t *workload.SyncTarget) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.retirement.abandoned[f.keyOf(t)]
}

// deadline is when the deletion of the compute workspace ceases to wait for SyncTargets.
func (f *fleet) deadline() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.retirement.began.Add(f.options.Retire)
}

// overdue reports whether the deletion of the compute workspace or its export stops waiting, even for consumers that
// refuse the server's writes. [export.Exports.Free] retries these later.
func (f *fleet) overdue() bool {
	if !f.scheduler.Retiring() {
		return false
	}
	since := f.deadline()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.retirement.here.After(since) { // this server has not tried yet
		since = f.retirement.here
	}
	return time.Now().After(since.Add(f.options.Retire / 10))
}

// record writes a message about a SyncTarget as an Event: of the APIExport if only the export is deleted, otherwise of the
// Workspace in the parent.
func (f *fleet) record(ctx context.Context, t *workload.SyncTarget, message string) error {
	if f.exportOnly() {
		return f.warn(ctx, f.compute, objects.Warning{
			About: corev1.ObjectReference{APIVersion: apis.GroupVersion.String(), Kind: "APIExport", Name: workload.KubernetesExport},
			Of:    f.keyOf(t), Reason: workload.CopiesRemain, Message: message,
		})
	}
	l, err := f.logicalCluster(ctx, f.compute)
	if err != nil || l.Spec.Owner == nil {
		return err
	}
	of := l.Spec.Owner
	return f.warn(ctx, kcp.ClusterName(of.Cluster), objects.Warning{
		About: corev1.ObjectReference{APIVersion: tenancy.GroupVersion.String(), Kind: "Workspace", Name: of.Name, UID: of.UID},
		Of:    f.keyOf(t), Reason: workload.CopiesRemain, Message: message,
	})
}
