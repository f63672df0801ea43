// Package removal deletes workspaces with their clusters: it waits for finalizers and terminators, stops
// writes to the cluster, deletes its content by stages, and ends with one transaction. It keeps all state in
// etcd. Package controllers/deletion decides when to continue a deletion.
package removal

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/tenancy"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// A Progress is the state of the deletion of a cluster.
type Progress int

const (
	// Alive means that no deletion was requested.
	Alive Progress = iota
	// Unfinished deletions can continue at once.
	Unfinished
	// Waiting deletions continue when all clusters below are deleted.
	Waiting
	// Blocked deletions continue when a client has removed finalizers. Deletions that
	// failed must also be retried: no event may follow when the cause of the error ends.
	Blocked
	// Terminating deletions continue when the terminators have finished.
	Terminating
	// Kept deletions continue when clients have removed their finalizers from the
	// Workspace or the LogicalCluster. Until then the content stays.
	Kept
	// Held deletions are complete except for the Workspace, which has more finalizers.
	Held
	// Ended means that the cluster and its content are deleted.
	Ended
)

// retries limits the attempts after concurrent changes.
const retries = 10

// A Remover deletes workspaces and their clusters. Workspaces is required.
type Remover struct {
	Workspaces *tenancy.Workspaces
	// Hooked reports whether webhooks or policies may refuse to delete objects of a resource
	// in a cluster; nil for none.
	Hooked func(cluster.Name, schema.GroupResource) bool
	// DeletedLast are the resources whose objects are deleted after ordinary content, and before
	// namespaces, exports and RBAC.
	DeletedLast []schema.GroupResource
}

// A deletion is a cluster to be deleted and its Workspace.
type deletion struct {
	*tenancy.Pair
	// forced deletions do not wait for finalizers and terminators. above has annotations
	// with the reason, of a forced deletion of a cluster above.
	forced bool
	above  map[string]string
}

// End continues the deletion of a Workspace and its cluster as far as possible. It does
// nothing if no deletion was requested. Its only state is in etcd, so a new call continues
// an interrupted one.
//
// First it waits for the finalizers of clients on the Workspace, then for those on the
// LogicalCluster and for terminators. Meanwhile the cluster can be used as before. Then it
// sets the fence to Terminating: from now on, no process can create objects in the cluster.
// Then it deletes the workspaces in the cluster, then the rest of the content. The last
// transaction deletes the LogicalCluster and the Workspace.
func (r *Remover) End(ctx context.Context, parent cluster.Name, name string, delete Delete) (Progress, error) {
	return r.repeat(ctx, delete, func() (*deletion, error) { return r.ofWorkspace(ctx, parent, name, false) })
}

// EndCluster is [Remover.End] for a cluster whose LogicalCluster is being deleted or
// whose Workspace is missing.
func (r *Remover) EndCluster(ctx context.Context, c cluster.Name, delete Delete) (Progress, error) {
	return r.repeat(ctx, delete, func() (*deletion, error) { return r.ofCluster(ctx, c, false) })
}

// Remove deletes a cluster, with its Workspace if it has one. It returns when the deletion
// is complete.
func (r *Remover) Remove(ctx context.Context, c cluster.Name) error {
	if c == cluster.Root || c.System() {
		return fmt.Errorf("logical cluster %s belongs to the server and cannot be deleted", c)
	}
	for range retries {
		d, err := r.ofCluster(ctx, c, true)
		if err != nil || d == nil {
			return err
		}
		rev, err := r.markDeleted(ctx, d)
		if tenancy.Moved(err) {
			continue
		}
		if err != nil {
			return err
		}
		return r.waitGone(ctx, c, max(rev, d.RootRevision))
	}
	return apierrors.NewServerTimeout(tree.LogicalClusters().GroupResource(), "delete", 1)
}

func (r *Remover) waitGone(ctx context.Context, c cluster.Name, rev int64) error {
	changed := make(chan struct{}, 1)
	unsubscribe := r.Workspaces.Tree.OnCluster(func(n cluster.Name) {
		if n != c {
			return
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	defer unsubscribe()
	if err := r.Workspaces.Store.Feed().WaitFor(ctx, rev); err != nil {
		return err
	}
	for {
		if _, ok := r.Workspaces.Tree.Cluster(c); !ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			err := fmt.Errorf("delete logical cluster %s: %w", c, ctx.Err())
			if why := r.obstacle(context.WithoutCancel(ctx), c); why != "" {
				err = fmt.Errorf("%w: %s", err, why)
			}
			return err
		}
	}
}

// repeat reads a deletion and continues it, and retries after concurrent changes.
func (r *Remover) repeat(ctx context.Context, delete Delete, read func() (*deletion, error)) (Progress, error) {
	for range retries {
		d, err := read()
		if err != nil || d == nil {
			return Alive, err
		}
		p, err := r.end(ctx, d, delete)
		if !tenancy.Moved(err) {
			return p, err
		}
	}
	return Unfinished, nil
}

func (r *Remover) end(ctx context.Context, d *deletion, delete Delete) (Progress, error) {
	if d.Cluster == "" {
		return Alive, r.release(ctx, d)
	}
	if _, err := r.markDeleted(ctx, d); err != nil {
		return Unfinished, err
	}
	switch {
	case d.Root.Status.Phase == core.PhaseTerminating:
		return Terminating, nil
	case len(d.keptByWorkspace()) > 0 || len(d.keptByCluster()) > 0:
		return Kept, nil
	}
	rest, err := r.clear(ctx, d, delete)
	if err != nil {
		return Unfinished, fmt.Errorf("delete the content of logical cluster %s: %w", d.Cluster, err)
	}
	switch {
	case rest.failed != nil:
		if err := r.report(ctx, d, rest); err != nil {
			return Blocked, err
		}
		return Blocked, fmt.Errorf("delete the content of logical cluster %s: %w", d.Cluster, rest.failed)
	case rest.more:
		return Unfinished, nil
	case rest.unreadable != nil:
		if err := r.report(ctx, d, rest); err != nil {
			return Blocked, err
		}
		return Blocked, fmt.Errorf("delete the content of logical cluster %s: %w", d.Cluster, rest.unreadable)
	case rest.blocked > 0:
		return Blocked, r.report(ctx, d, rest)
	case rest.below > 0:
		return Waiting, r.report(ctx, d, rest)
	}
	if err := r.finish(ctx, d); err != nil {
		return Unfinished, err
	}
	if d.Workspace != nil && len(d.Workspace.Finalizers) > 0 && !d.forced {
		return Held, nil
	}
	return Ended, nil
}

// ofWorkspace reads the deletion of a Workspace. It returns nil if there is no such
// Workspace or, unless force is set, if it is not being deleted. The deletion has no
// cluster if the Workspace has none, or one that does not belong to it.
func (r *Remover) ofWorkspace(ctx context.Context, parent cluster.Name, name string, force bool) (*deletion, error) {
	p, err := r.Workspaces.ReadWorkspace(ctx, parent, name)
	if err != nil || p == nil || p.Workspace.DeletionTimestamp == nil && !force {
		return nil, err
	}
	return &deletion{Pair: p}, r.Workspaces.ReadCluster(ctx, p)
}

// ofCluster reads the deletion of a cluster. It returns nil if there is no such cluster or,
// unless force is set, if the cluster is not being deleted and its Workspace exists and is
// not being deleted either.
func (r *Remover) ofCluster(ctx context.Context, c cluster.Name, force bool) (*deletion, error) {
	if c == cluster.Root || c.System() {
		return nil, nil
	}
	p, err := r.Workspaces.ReadPair(ctx, c)
	switch {
	case err != nil || p == nil:
		return nil, err
	case force, p.Root.DeletionTimestamp != nil, p.Workspace != nil && p.Workspace.DeletionTimestamp != nil:
		return &deletion{Pair: p}, nil
	case p.Root.Spec.Owner != nil && p.Workspace == nil:
		return &deletion{Pair: p}, nil // one transaction creates both, so the Workspace was deleted
	}
	return nil, nil
}

// markDeleted marks the cluster and its Workspace as being deleted. Unless terminators or
// finalizers of clients block the deletion of the content, it sets the fence to
// Terminating, so that no objects can be created in the cluster. It returns the revision
// of its write, or 0 if it wrote nothing.
func (r *Remover) markDeleted(ctx context.Context, d *deletion) (int64, error) {
	now := metav1.Now().Rfc3339Copy()
	d.forced = d.forced || d.isForced()
	if kept := d.keptByWorkspace(); len(kept) > 0 {
		if !d.hold(kept, now) {
			return 0, nil
		}
		return r.saveWorkspace(ctx, d)
	}
	phase, left := d.awaited()
	var turn []store.Fence
	if !left.waiting() {
		state, err := r.Workspaces.Store.State(ctx, d.Cluster)
		if err != nil {
			return 0, err
		}
		if state != store.Terminating {
			turn = []store.Fence{{Cluster: d.Cluster, From: state, State: store.Terminating}}
		}
	}
	if !d.mark(phase, left, turn != nil, now) && turn == nil {
		return 0, nil
	}
	return r.Workspaces.SavePair(ctx, d.Pair, turn...)
}

// awaited returns the phase of a cluster that is being deleted, and the terminators and
// finalizers that block the deletion of its content.
func (d *deletion) awaited() (core.Phase, rest) {
	phase, left := core.PhaseDeleting, rest{}
	if l := d.Root; len(l.Status.Terminators) > 0 && !d.forced && l.Status.Phase != core.PhaseDeleting {
		phase, left.terminators = core.PhaseTerminating, l.Status.Terminators
	}
	if kept := d.keptByCluster(); len(kept) > 0 {
		reason, why := tree.SomeFinalizersRemain, keptBy("logicalclusters.core.kcp.io "+core.LogicalClusterName, kept)
		if len(left.terminators) > 0 {
			reason, why = tree.SomeTerminatorsRemain, unfinished(left.terminators)+"; "+why
		}
		left.block(reason, why)
	}
	return phase, left
}

// mark records the phase of the deletion and its obstacles in both objects, and reports
// whether it changed them. If turning is set, the same transaction sets the fence.
func (d *deletion) mark(phase core.Phase, left rest, turning bool, now metav1.Time) bool {
	remain := left.condition()
	remain.LastTransitionTime = now
	marked := mark(&d.Root.ObjectMeta, now)
	if d.forced {
		marked = d.force(d.above) || marked
	}
	// If set, the condition is written. Later report writes it, by the remaining content.
	conditioned := turning || left.waiting()
	if d.Root.Status.Phase != phase {
		d.Root.Status.Phase, marked, conditioned = phase, true, true
	}
	if conditioned {
		marked = d.Root.Status.Conditions.Set(remain) || marked
	}
	ws := d.Workspace
	if ws == nil {
		return marked
	}
	marked = mark(&ws.ObjectMeta, now) || marked
	if !slices.Equal(ws.Status.Terminators, d.Root.Status.Terminators) {
		ws.Status.Terminators, marked = d.Root.Status.Terminators, true
	}
	if ws.Status.Phase != phase {
		tenancy.SetPhase(ws, phase, now)
		marked, conditioned = true, true
	}
	if conditioned {
		marked = ws.Status.Conditions.Set(remain) || marked
	}
	return marked
}

// mark begins the deletion of an object as its registry would, and reports whether it
// changed the object.
func mark(m *metav1.ObjectMeta, now metav1.Time) bool {
	if m.Labels == nil {
		m.Labels = map[string]string{}
	}
	if m.DeletionTimestamp != nil {
		return false
	}
	m.DeletionTimestamp, m.DeletionGracePeriodSeconds = &now, new(int64)
	if m.Generation > 0 {
		m.Generation++
	}
	return true
}

// report writes the condition about the remaining content to the LogicalCluster and the
// Workspace.
func (r *Remover) report(ctx context.Context, d *deletion, rest rest) error {
	c := rest.condition()
	changed := d.Root.Status.Conditions.Set(c)
	if d.Workspace != nil {
		changed = d.Workspace.Status.Conditions.Set(c) || changed
	}
	if !changed {
		return nil
	}
	_, err := r.Workspaces.SavePair(ctx, d.Pair)
	return err
}

// finish deletes the empty cluster, and removes the finalizer of its Workspace, in one
// transaction.
func (r *Remover) finish(ctx context.Context, d *deletion) error {
	root, err := tenancy.ClusterWrite(d.Cluster, d.Root, d.RootRevision)
	if err != nil {
		return err
	}
	root.Delete = true
	writes := []store.Write{root}
	if d.Workspace != nil {
		released, err := r.released(d)
		if err != nil {
			return err
		}
		writes = append(writes, released)
	}
	_, err = r.Workspaces.Store.Commit(ctx, writes, store.Fence{Cluster: d.Cluster, From: store.Terminating, State: store.Gone})
	return err
}

// release removes the server's finalizer of a Workspace that has no cluster of its own.
func (r *Remover) release(ctx context.Context, d *deletion) error {
	left := d.Workspace.Finalizers
	if d.Workspace.DeletionTimestamp == nil || len(left) > 0 && !slices.Contains(left, core.LogicalClusterFinalizer) {
		return nil
	}
	released, err := r.released(d)
	if err != nil {
		return err
	}
	_, err = r.Workspaces.Store.Commit(ctx, []store.Write{released})
	return err
}

// released returns the write that removes the server's finalizer from a Workspace. If no
// finalizer remains, the write deletes the Workspace.
func (r *Remover) released(d *deletion) (store.Write, error) {
	ws := d.Workspace
	ws.Finalizers = slices.DeleteFunc(ws.Finalizers, func(f string) bool { return d.forced || f == core.LogicalClusterFinalizer })
	ws.Status.Conditions.Set(conditions.Condition{Type: core.WorkspaceContentDeleted, Status: metav1.ConditionTrue})
	write, err := r.Workspaces.WorkspaceWrite(d.Parent, ws, d.WorkspaceRevision)
	write.Delete = len(ws.Finalizers) == 0
	return write, err
}
