package removal

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/tenancy"
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
	if d.forced || d.Workspace == nil || d.Root.DeletionTimestamp != nil {
		return nil
	}
	return foreignFinalizers(d.Workspace.Finalizers)
}

// keptByCluster returns the foreign finalizers on the LogicalCluster. Until they are
// removed, the content of the cluster stays.
func (d *deletion) keptByCluster() []string {
	if d.forced {
		return nil
	}
	return foreignFinalizers(d.Root.Finalizers)
}

// hold begins the deletion of the Workspace but not of its cluster, and reports whether it
// changed the Workspace.
func (d *deletion) hold(kept []string, now metav1.Time) bool {
	ws := d.Workspace
	var left rest
	left.block(tree.SomeFinalizersRemain, keptBy("workspaces.tenancy.kcp.io "+ws.Name, kept))
	remain := left.condition()
	remain.LastTransitionTime = now
	marked := mark(&ws.ObjectMeta, now)
	if ws.Status.Phase != core.PhaseDeleting {
		tenancy.SetPhase(ws, core.PhaseDeleting, now)
		marked = true
	}
	return ws.Status.Conditions.Set(remain) || marked
}

// saveWorkspace writes the Workspace of a deletion, without its LogicalCluster.
func (r *Remover) saveWorkspace(ctx context.Context, d *deletion) (int64, error) {
	ws, err := r.Workspaces.WorkspaceWrite(d.Parent, d.Workspace, d.WorkspaceRevision)
	if err != nil {
		return 0, err
	}
	rev, err := r.Workspaces.Store.Commit(ctx, []store.Write{ws})
	if err == nil {
		d.WorkspaceRevision = rev
	}
	return rev, err
}

// obstacle returns the message of the condition about the remaining content of a cluster
// that is being deleted. It is empty if there is no such condition.
func (r *Remover) obstacle(ctx context.Context, c cluster.Name) string {
	p, err := r.Workspaces.ReadPair(ctx, c)
	if err != nil || p == nil {
		return ""
	}
	if left := p.Root.Status.Conditions.Get(core.WorkspaceContentDeleted); left != nil {
		return left.Message
	}
	if p.Workspace == nil {
		return ""
	}
	if left := p.Workspace.Status.Conditions.Get(core.WorkspaceContentDeleted); left != nil {
		return left.Message
	}
	return ""
}
