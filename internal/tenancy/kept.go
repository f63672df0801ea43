package tenancy

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// foreignFinalizers returns the finalizers of a Workspace or LogicalCluster that clients
// must remove, because neither this server nor the garbage collector does.
func foreignFinalizers(all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(f string) bool {
		switch f {
		case core.LogicalClusterFinalizer, core.DeletionFinalizer, core.TerminatorsFinalizer,
			metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents:
			return true
		default:
			return false
		}
	})
}

// keptByWorkspace returns the foreign finalizers on the Workspace. Until they are removed,
// the cluster and its LogicalCluster do not change. Once the deletion of the LogicalCluster
// has begun, only finalizers on that object count.
func (d *deletion) keptByWorkspace() []string {
	if d.forced || d.workspace == nil || d.root.DeletionTimestamp != nil {
		return nil
	}
	return foreignFinalizers(d.workspace.Finalizers)
}

// keptByCluster returns the foreign finalizers on the LogicalCluster. Until they are
// removed, the content of the cluster stays.
func (d *deletion) keptByCluster() []string {
	if d.forced {
		return nil
	}
	return foreignFinalizers(d.root.Finalizers)
}

// hold begins the deletion of the Workspace but not of its cluster, and reports whether it
// changed the Workspace.
func (d *deletion) hold(kept []string, now metav1.Time) bool {
	ws := d.workspace
	var left rest
	left.block(tree.SomeFinalizersRemain, keptBy("workspaces.tenancy.kcp.io "+ws.Name, kept))
	remain := left.condition()
	remain.LastTransitionTime = now
	marked := mark(&ws.ObjectMeta, now)
	if ws.Status.Phase != core.PhaseDeleting {
		setPhase(ws, core.PhaseDeleting, now)
		marked = true
	}
	return ws.Status.Conditions.Set(remain) || marked
}

// saveWorkspace writes the Workspace of a deletion, without its LogicalCluster.
func (w *Workspaces) saveWorkspace(ctx context.Context, d *deletion) (int64, error) {
	ws, err := w.workspaceWrite(d.parent, d.workspace, d.workspaceRev)
	if err != nil {
		return 0, err
	}
	rev, err := w.Store.Commit(ctx, []store.Write{ws})
	if err == nil {
		d.workspaceRev = rev
	}
	return rev, err
}

// obstacle returns the message of the condition about the remaining content of a cluster
// that is being deleted. It is empty if there is no such condition.
func (w *Workspaces) obstacle(ctx context.Context, c cluster.Name) string {
	d, err := w.ofCluster(ctx, c, true)
	if err != nil || d == nil {
		return ""
	}
	if left := d.root.Status.Conditions.Get(core.WorkspaceContentDeleted); left != nil {
		return left.Message
	}
	if d.workspace == nil {
		return ""
	}
	if left := d.workspace.Status.Conditions.Get(core.WorkspaceContentDeleted); left != nil {
		return left.Message
	}
	return ""
}
