package tenancy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
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

// A deletion is a cluster to be deleted and its Workspace, as they were read.
type deletion struct {
	cluster cluster.Name
	root    *core.LogicalCluster
	rootRev int64
	// workspace is the Workspace of the cluster and parent its cluster, if there is one.
	parent       cluster.Name
	workspace    *tenancyapi.Workspace
	workspaceRev int64
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
func (w *Workspaces) End(ctx context.Context, parent cluster.Name, name string, delete Delete) (Progress, error) {
	return w.repeat(ctx, delete, func() (*deletion, error) { return w.ofWorkspace(ctx, parent, name, false) })
}

// EndCluster is [Workspaces.End] for a cluster whose LogicalCluster is being deleted or
// whose Workspace is missing.
func (w *Workspaces) EndCluster(ctx context.Context, c cluster.Name, delete Delete) (Progress, error) {
	return w.repeat(ctx, delete, func() (*deletion, error) { return w.ofCluster(ctx, c, false) })
}

// Remove deletes a cluster, with its Workspace if it has one. It returns when the deletion
// is complete.
func (w *Workspaces) Remove(ctx context.Context, c cluster.Name) error {
	if c == cluster.Root || c.System() {
		return fmt.Errorf("logical cluster %s belongs to the server and cannot be deleted", c)
	}
	for range retries {
		d, err := w.ofCluster(ctx, c, true)
		if err != nil || d == nil {
			return err
		}
		rev, err := w.markDeleted(ctx, d)
		if moved(err) {
			continue
		}
		if err != nil {
			return err
		}
		return w.waitGone(ctx, c, max(rev, d.rootRev))
	}
	return apierrors.NewServerTimeout(tree.LogicalClusters().GroupResource(), "delete", 1)
}

func (w *Workspaces) waitGone(ctx context.Context, c cluster.Name, rev int64) error {
	changed := make(chan struct{}, 1)
	unsubscribe := w.Tree.OnCluster(func(n cluster.Name) {
		if n != c {
			return
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	defer unsubscribe()
	if err := w.Store.Feed().WaitFor(ctx, rev); err != nil {
		return err
	}
	for {
		if _, ok := w.Tree.Cluster(c); !ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			err := fmt.Errorf("delete logical cluster %s: %w", c, ctx.Err())
			if why := w.obstacle(context.WithoutCancel(ctx), c); why != "" {
				err = fmt.Errorf("%w: %s", err, why)
			}
			return err
		}
	}
}

// repeat reads a deletion and continues it, and retries after concurrent changes.
func (w *Workspaces) repeat(ctx context.Context, delete Delete, read func() (*deletion, error)) (Progress, error) {
	for range retries {
		d, err := read()
		if err != nil || d == nil {
			return Alive, err
		}
		p, err := w.end(ctx, d, delete)
		if !moved(err) {
			return p, err
		}
	}
	return Unfinished, nil
}

// moved reports whether an error means that an object has changed since it was read.
func moved(err error) bool {
	return errors.Is(err, store.ErrChanged) || storage.IsConflict(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err)
}

func (w *Workspaces) end(ctx context.Context, d *deletion, delete Delete) (Progress, error) {
	if d.cluster == "" {
		return Alive, w.release(ctx, d)
	}
	if _, err := w.markDeleted(ctx, d); err != nil {
		return Unfinished, err
	}
	switch {
	case d.root.Status.Phase == core.PhaseTerminating:
		return Terminating, nil
	case len(d.keptByWorkspace()) > 0 || len(d.keptByCluster()) > 0:
		return Kept, nil
	}
	rest, err := w.clear(ctx, d, delete)
	if err != nil {
		return Unfinished, fmt.Errorf("delete the content of logical cluster %s: %w", d.cluster, err)
	}
	switch {
	case rest.failed != nil:
		if err := w.report(ctx, d, rest); err != nil {
			return Blocked, err
		}
		return Blocked, fmt.Errorf("delete the content of logical cluster %s: %w", d.cluster, rest.failed)
	case rest.more:
		return Unfinished, nil
	case rest.unreadable != nil:
		if err := w.report(ctx, d, rest); err != nil {
			return Blocked, err
		}
		return Blocked, fmt.Errorf("delete the content of logical cluster %s: %w", d.cluster, rest.unreadable)
	case rest.blocked > 0:
		return Blocked, w.report(ctx, d, rest)
	case rest.below > 0:
		return Waiting, w.report(ctx, d, rest)
	}
	if err := w.finish(ctx, d); err != nil {
		return Unfinished, err
	}
	if d.workspace != nil && len(d.workspace.Finalizers) > 0 && !d.forced {
		return Held, nil
	}
	return Ended, nil
}

// ofWorkspace reads the deletion of a Workspace. It returns nil if there is no such
// Workspace or, unless force is set, if it is not being deleted. The deletion has no
// cluster if the Workspace has none, or one that does not belong to it.
func (w *Workspaces) ofWorkspace(ctx context.Context, parent cluster.Name, name string, force bool) (*deletion, error) {
	ws, rev, err := read[tenancyapi.Workspace](ctx, w.Store, keys.Key{Resource: w.Resource, Cluster: parent, Name: name})
	if err != nil || ws == nil || ws.DeletionTimestamp == nil && !force {
		return nil, err
	}
	d := &deletion{parent: parent, workspace: ws, workspaceRev: rev}
	c := cluster.Name(ws.Spec.Cluster)
	if c == "" || c == cluster.Root || c.System() {
		return d, nil
	}
	l, lrev, err := read[core.LogicalCluster](ctx, w.Store, clusterKey(c))
	if err != nil {
		return nil, err
	}
	if l != nil && owns(l, parent, ws) {
		d.cluster, d.root, d.rootRev = c, l, lrev
	}
	return d, nil
}

func owns(l *core.LogicalCluster, parent cluster.Name, ws *tenancyapi.Workspace) bool {
	o := l.Spec.Owner
	return o != nil && o.Cluster == string(parent) && o.Name == ws.Name && o.UID == ws.UID
}

// ofCluster reads the deletion of a cluster. It returns nil if there is no such cluster or,
// unless force is set, if the cluster is not being deleted and its Workspace exists and is
// not being deleted either.
func (w *Workspaces) ofCluster(ctx context.Context, c cluster.Name, force bool) (*deletion, error) {
	if c == cluster.Root || c.System() {
		return nil, nil
	}
	l, lrev, err := read[core.LogicalCluster](ctx, w.Store, clusterKey(c))
	if err != nil || l == nil {
		return nil, err
	}
	force = force || l.DeletionTimestamp != nil
	d := &deletion{cluster: c, root: l, rootRev: lrev}
	if o := l.Spec.Owner; o != nil {
		// One transaction creates both, so a Workspace that is missing now was deleted.
		key := keys.Key{Resource: w.Resource, Cluster: cluster.Name(o.Cluster), Name: o.Name}
		ws, rev, err := read[tenancyapi.Workspace](ctx, w.Store, key)
		if err != nil {
			return nil, err
		}
		if ws != nil && ws.UID == o.UID {
			d.parent, d.workspace, d.workspaceRev = key.Cluster, ws, rev
			force = force || ws.DeletionTimestamp != nil
		} else {
			force = true
		}
	}
	if !force {
		return nil, nil
	}
	return d, nil
}

// markDeleted marks the cluster and its Workspace as being deleted. Unless terminators or
// finalizers of clients block the deletion of the content, it sets the fence to
// Terminating, so that no objects can be created in the cluster. It returns the revision
// of its write, or 0 if it wrote nothing.
func (w *Workspaces) markDeleted(ctx context.Context, d *deletion) (int64, error) {
	now := metav1.Now().Rfc3339Copy()
	d.forced = d.forced || d.isForced()
	if kept := d.keptByWorkspace(); len(kept) > 0 {
		if !d.hold(kept, now) {
			return 0, nil
		}
		return w.saveWorkspace(ctx, d)
	}
	phase, left := d.awaited()
	var turn []store.Fence
	if !left.waiting() {
		state, err := w.Store.State(ctx, d.cluster)
		if err != nil {
			return 0, err
		}
		if state != store.Terminating {
			turn = []store.Fence{{Cluster: d.cluster, From: state, State: store.Terminating}}
		}
	}
	if !d.mark(phase, left, turn != nil, now) && turn == nil {
		return 0, nil
	}
	return w.save(ctx, d, turn...)
}

// awaited returns the phase of a cluster that is being deleted, and the terminators and
// finalizers that block the deletion of its content.
func (d *deletion) awaited() (core.Phase, rest) {
	phase, left := core.PhaseDeleting, rest{}
	if l := d.root; len(l.Status.Terminators) > 0 && !d.forced && l.Status.Phase != core.PhaseDeleting {
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
	marked := mark(&d.root.ObjectMeta, now)
	if d.forced {
		marked = d.force(d.above) || marked
	}
	// If set, the condition is written. Later report writes it, by the remaining content.
	conditioned := turning || left.waiting()
	if d.root.Status.Phase != phase {
		d.root.Status.Phase, marked, conditioned = phase, true, true
	}
	if conditioned {
		marked = d.root.Status.Conditions.Set(remain) || marked
	}
	ws := d.workspace
	if ws == nil {
		return marked
	}
	marked = mark(&ws.ObjectMeta, now) || marked
	if !slices.Equal(ws.Status.Terminators, d.root.Status.Terminators) {
		ws.Status.Terminators, marked = d.root.Status.Terminators, true
	}
	if ws.Status.Phase != phase {
		setPhase(ws, phase, now)
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

// save writes the LogicalCluster and the Workspace of a deletion.
func (w *Workspaces) save(ctx context.Context, d *deletion, turn ...store.Fence) (int64, error) {
	root, err := clusterWrite(d.cluster, d.root, d.rootRev)
	if err != nil {
		return 0, err
	}
	writes := []store.Write{root}
	if d.workspace != nil {
		ws, err := w.workspaceWrite(d.parent, d.workspace, d.workspaceRev)
		if err != nil {
			return 0, err
		}
		writes = append(writes, ws)
	}
	rev, err := w.Store.Commit(ctx, writes, turn...)
	if err == nil {
		d.rootRev, d.workspaceRev = rev, rev
	}
	return rev, err
}

// report writes the condition about the remaining content to the LogicalCluster and the
// Workspace.
func (w *Workspaces) report(ctx context.Context, d *deletion, rest rest) error {
	c := rest.condition()
	changed := d.root.Status.Conditions.Set(c)
	if d.workspace != nil {
		changed = d.workspace.Status.Conditions.Set(c) || changed
	}
	if !changed {
		return nil
	}
	_, err := w.save(ctx, d)
	return err
}

// finish deletes the empty cluster, and removes the finalizer of its Workspace, in one
// transaction.
func (w *Workspaces) finish(ctx context.Context, d *deletion) error {
	root, err := clusterWrite(d.cluster, d.root, d.rootRev)
	if err != nil {
		return err
	}
	root.Delete = true
	writes := []store.Write{root}
	if d.workspace != nil {
		released, err := w.released(d)
		if err != nil {
			return err
		}
		writes = append(writes, released)
	}
	_, err = w.Store.Commit(ctx, writes, store.Fence{Cluster: d.cluster, From: store.Terminating, State: store.Gone})
	return err
}

// release removes the server's finalizer of a Workspace that has no cluster of its own.
func (w *Workspaces) release(ctx context.Context, d *deletion) error {
	left := d.workspace.Finalizers
	if d.workspace.DeletionTimestamp == nil || len(left) > 0 && !slices.Contains(left, core.LogicalClusterFinalizer) {
		return nil
	}
	released, err := w.released(d)
	if err != nil {
		return err
	}
	_, err = w.Store.Commit(ctx, []store.Write{released})
	return err
}

// released returns the write that removes the server's finalizer from a Workspace. If no
// finalizer remains, the write deletes the Workspace.
func (w *Workspaces) released(d *deletion) (store.Write, error) {
	ws := d.workspace
	ws.Finalizers = slices.DeleteFunc(ws.Finalizers, func(f string) bool { return d.forced || f == core.LogicalClusterFinalizer })
	ws.Status.Conditions.Set(conditions.Condition{Type: core.WorkspaceContentDeleted, Status: metav1.ConditionTrue})
	write, err := w.workspaceWrite(d.parent, ws, d.workspaceRev)
	write.Delete = len(ws.Finalizers) == 0
	return write, err
}
