package fleet

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
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

// retire makes the fleet remove the copies of all workloads if a SyncTarget, nil if it is gone, is deleted with its
// compute workspace. It says so in the status of the SyncTarget, and which copies remain.
func (f *fleet) retire(ctx context.Context, t *workload.SyncTarget) error {
	if t == nil || t.DeletionTimestamp == nil {
		return nil
	}
	if !f.scheduler.Retiring() {
		if ends, err := f.ends(ctx, f.compute); !ends || err != nil {
			return err
		}
		f.mu.Lock()
		f.retired = time.Now()
		f.mu.Unlock()
		for _, of := range f.term.targets.List(f.compute) { // one of them may keep its copies
			f.inventory.LearnTarget(of.Name)
		}
		f.scheduler.Retire()
	}
	if !f.holds(t, true) {
		return nil
	}
	next, remain := t.Status.DeepCopy(), f.abandoned(t)
	c := conditions.Condition{Type: workload.CopiesRemoved, Status: metav1.ConditionFalse, Severity: conditions.SeverityInfo, Reason: workload.RemovingCopies,
		Message: "the workspace is being deleted, and the physical cluster removes the copies of workloads; from " + f.deadline(t).UTC().Format(time.RFC3339) + " on, the deletion does not wait for it"}
	if remain {
		c.Severity, c.Reason, c.Message = conditions.SeverityError, workload.CopiesRemain, fmt.Sprintf(
			"physical cluster %q may still have copies of workloads, as it did not remove them before its compute workspace was deleted; to remove them, run there: kubectl delete namespaces -l %s=%s", t.Name, workload.OwnerLabel, f.keyOf(t))
	}
	if !next.Conditions.Set(c) {
		return nil
	}
	if err := f.saveStatus(ctx, t, next); err != nil && !f.overdue(t) {
		return err
	}
	if remain {
		f.warn(ctx, c.Message)
	}
	return nil
}

// abandoned reports whether the deletion of the compute workspace does not wait for a SyncTarget any more.
func (f *fleet) abandoned(t *workload.SyncTarget) bool {
	return t.DeletionTimestamp != nil && f.scheduler.Retiring() && (fenced(t) || time.Now().After(f.deadline(t)))
}

// deadline is when the deletion of the compute workspace ceases to wait for a SyncTarget.
func (f *fleet) deadline(t *workload.SyncTarget) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	began := f.retired
	if of := t.DeletionTimestamp.Time; of.After(began) {
		began = of
	}
	return began.Add(f.options.Retire)
}

// overdue reports whether the deletion of the compute workspace does not wait for the consumers of a SyncTarget any
// more either, which may refuse what the server writes. [export.Exports.Free] tries again later.
func (f *fleet) overdue(t *workload.SyncTarget) bool {
	return f.abandoned(t) && time.Now().After(f.deadline(t).Add(f.options.Retire/10))
}

// warn logs a message about the compute workspace, and makes it an Event of its Workspace: nothing else is left of it.
func (f *fleet) warn(ctx context.Context, message string) {
	klog.FromContext(ctx).Info("copies of workloads remain", "cluster", f.compute, "message", message)
	if err := f.record(ctx, message); err != nil {
		klog.FromContext(ctx).V(2).Info("cannot record an event about copies of workloads", "cluster", f.compute, "err", err)
	}
}

func (f *fleet) record(ctx context.Context, message string) error {
	l, err := f.logicalCluster(ctx, f.compute)
	if err != nil || l.Spec.Owner == nil {
		return err
	}
	of := l.Spec.Owner
	cfg, err := f.server.Own(of.Cluster)
	if err != nil {
		return err
	}
	events, err := client.New[*corev1.Event, *corev1.EventList](cfg, of.Cluster, corev1.SchemeGroupVersion.WithResource("events"))
	if err != nil {
		return err
	}
	now := metav1.Now()
	_, err = events.Namespace(metav1.NamespaceDefault).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: of.Name + ".", Namespace: metav1.NamespaceDefault},
		InvolvedObject: corev1.ObjectReference{APIVersion: tenancy.GroupVersion.String(), Kind: "Workspace", Name: of.Name, UID: of.UID},
		Reason:         workload.CopiesRemain, Message: message, Type: corev1.EventTypeWarning, Count: 1,
		FirstTimestamp: now, LastTimestamp: now, Source: corev1.EventSource{Component: "kcp"},
	}, metav1.CreateOptions{})
	return err
}
