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
	"github.com/unforked/kcp/internal/store"
)

// Reasons why the content of a cluster that is being deleted is not gone.
const (
	// SomeResourcesRemain is the reason while nobody has to act.
	SomeResourcesRemain = "SomeResourcesRemain"
	// SomeFinalizersRemain is the reason while finalizers keep objects.
	SomeFinalizersRemain = "SomeFinalizersRemain"
	// SomeTerminatorsRemain is the reason while terminators have not finished, for
	// which everything stays.
	SomeTerminatorsRemain = "SomeTerminatorsRemain"
)

// A Progress says how far the deletion of a cluster has come.
type Progress int

const (
	// Alive clusters are not to be deleted.
	Alive Progress = iota
	// Unfinished deletions go on at once.
	Unfinished
	// Waiting deletions go on when no cluster is left below.
	Waiting
	// Blocked deletions go on when somebody has removed finalizers.
	Blocked
	// Terminating deletions go on when the terminators have finished.
	Terminating
	// Held deletions are complete but for the Workspace, which other finalizers keep.
	Held
	// Ended clusters are gone with everything in them.
	Ended
)

// retries bounds how often what somebody else changed meanwhile is read again.
const retries = 10

// A death is a cluster that is to be deleted, as it was read.
type death struct {
	cluster cluster.Name
	root    *core.LogicalCluster
	rootRev int64
	// parent and workspace lead to the cluster; nil if nothing does.
	parent       cluster.Name
	workspace    *tenancyapi.Workspace
	workspaceRev int64
	// forced deletions wait for nobody. The annotations of what is above say why.
	forced bool
	above  map[string]string
}

// End takes the deletion of a Workspace and its cluster as far as it can be taken
// now, and does nothing if nobody asked for it. What is done and what is left is
// found in etcd alone, so it does not matter where the last call was cut.
//
// First the terminators of the cluster have their time, in which it goes on as it was.
// Then the fence turns: from then on nothing can be created in the cluster, by no
// process. Then its workspaces end, then what it contains, and at last, in one
// transaction, it goes together with its Workspace.
func (w *Workspaces) End(ctx context.Context, parent cluster.Name, name string, delete Delete) (Progress, error) {
	return w.repeat(ctx, delete, func() (*death, error) { return w.ofWorkspace(ctx, parent, name, false) })
}

// EndCluster is [Workspaces.End] for a cluster whose LogicalCluster was deleted, or
// whose Workspace is gone.
func (w *Workspaces) EndCluster(ctx context.Context, c cluster.Name, delete Delete) (Progress, error) {
	return w.repeat(ctx, delete, func() (*death, error) { return w.ofCluster(ctx, c, false) })
}

// Remove deletes a cluster, with its Workspace if it has one, and returns when
// nothing is left of it.
func (w *Workspaces) Remove(ctx context.Context, c cluster.Name) error {
	if c == cluster.Root || c.System() {
		return fmt.Errorf("logical cluster %s is the server's own and cannot be deleted", c)
	}
	for range retries {
		d, err := w.ofCluster(ctx, c, true)
		if err != nil || d == nil {
			return err
		}
		rev, err := w.condemn(ctx, d)
		if moved(err) {
			continue
		}
		if err != nil {
			return err
		}
		return w.waitGone(ctx, c, max(rev, d.rootRev))
	}
	return apierrors.NewServerTimeout(LogicalClusters().GroupResource(), "delete", 1)
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
	if err := w.Store.Spine().WaitFor(ctx, rev); err != nil {
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
			l, _, rerr := read[core.LogicalCluster](context.WithoutCancel(ctx), w.Store, clusterKey(c))
			if rerr != nil || l == nil {
				return err
			}
			if left := l.Status.Conditions.Get(core.WorkspaceContentDeleted); left != nil {
				err = fmt.Errorf("%w: %s", err, left.Message)
			}
			return err
		}
	}
}

// repeat reads a death and goes on with it, again if it was changed meanwhile.
func (w *Workspaces) repeat(ctx context.Context, delete Delete, read func() (*death, error)) (Progress, error) {
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

// moved reports whether an error says that something is not as it was read.
func moved(err error) bool {
	return errors.Is(err, store.ErrChanged) || storage.IsConflict(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err)
}

func (w *Workspaces) end(ctx context.Context, d *death, delete Delete) (Progress, error) {
	if d.cluster == "" {
		return Alive, w.release(ctx, d)
	}
	if _, err := w.condemn(ctx, d); err != nil {
		return Unfinished, err
	}
	if d.root.Status.Phase == core.PhaseTerminating {
		return Terminating, nil
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
	case rest.blocked > 0:
		return Blocked, w.report(ctx, d, rest)
	case rest.below > 0:
		return Waiting, w.report(ctx, d, rest)
	}
	if err := w.bury(ctx, d); err != nil {
		return Unfinished, err
	}
	if d.workspace != nil && len(d.workspace.Finalizers) > 0 && !d.forced {
		return Held, nil
	}
	return Ended, nil
}

// ofWorkspace reads the death of a Workspace. It is nil if that is gone or, unless
// forced, nobody wants to delete it. It is of no cluster if the Workspace has none,
// or one that does not belong to it.
func (w *Workspaces) ofWorkspace(ctx context.Context, parent cluster.Name, name string, force bool) (*death, error) {
	ws, rev, err := read[tenancyapi.Workspace](ctx, w.Store, store.Key{Resource: w.Resource, Cluster: parent, Name: name})
	if err != nil || ws == nil || ws.DeletionTimestamp == nil && !force {
		return nil, err
	}
	d := &death{parent: parent, workspace: ws, workspaceRev: rev}
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

// ofCluster reads the death of a cluster. It is nil if that is gone or, unless
// forced, nobody wants to delete it and its Workspace is there.
func (w *Workspaces) ofCluster(ctx context.Context, c cluster.Name, force bool) (*death, error) {
	if c == cluster.Root || c.System() {
		return nil, nil
	}
	l, lrev, err := read[core.LogicalCluster](ctx, w.Store, clusterKey(c))
	if err != nil || l == nil {
		return nil, err
	}
	force = force || l.DeletionTimestamp != nil
	d := &death{cluster: c, root: l, rootRev: lrev}
	if o := l.Spec.Owner; o != nil {
		// Both come to be in one transaction: a Workspace that is not there now will
		// never be.
		key := store.Key{Resource: w.Resource, Cluster: cluster.Name(o.Cluster), Name: o.Name}
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

// condemn marks the cluster and its Workspace as being deleted. Unless terminators
// have their time first, it keeps everybody from creating anything in it. It returns
// the revision at which that was so, 0 if it was before.
func (w *Workspaces) condemn(ctx context.Context, d *death) (int64, error) {
	now := metav1.Now().Rfc3339Copy()
	d.forced = d.forced || d.isForced()
	phase, left := core.PhaseDeleting, rest{}
	if l := d.root; len(l.Status.Terminators) > 0 && !d.forced && l.Status.Phase != core.PhaseDeleting {
		phase, left = core.PhaseTerminating, rest{terminators: l.Status.Terminators}
	}
	var turn []store.Fence
	if phase == core.PhaseDeleting {
		state, err := w.Store.State(ctx, d.cluster)
		if err != nil {
			return 0, err
		}
		if state != store.Terminating {
			turn = []store.Fence{{Cluster: d.cluster, From: state, State: store.Terminating}}
		}
	}
	if !d.mark(phase, left, now) && turn == nil {
		return 0, nil
	}
	return w.save(ctx, d, turn...)
}

// mark begins a phase of the deletion, for which something is left, and reports whether
// that changes anything.
func (d *death) mark(phase core.Phase, left rest, now metav1.Time) bool {
	remain := left.condition()
	remain.LastTransitionTime = now
	marked := mark(&d.root.ObjectMeta, now)
	if d.forced {
		marked = d.force(d.above) || marked
	}
	if d.root.Status.Phase != phase {
		d.root.Status.Phase, marked = phase, true
		d.root.Status.Conditions.Set(remain)
	} else if phase == core.PhaseTerminating {
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
		marked = true
		setPhase(ws, phase, now)
		ws.Status.Conditions.Set(remain)
	} else if phase == core.PhaseTerminating {
		marked = ws.Status.Conditions.Set(remain) || marked
	}
	return marked
}

// mark begins the deletion of an object, as its registry would.
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

// save writes the LogicalCluster and the Workspace of a death.
func (w *Workspaces) save(ctx context.Context, d *death, turn ...store.Fence) (int64, error) {
	lc, err := toUnstructured(d.root, core.GroupVersion.WithKind("LogicalCluster"))
	if err != nil {
		return 0, err
	}
	writes := []store.Write{{Resource: LogicalClusters(), Cluster: d.cluster, Object: lc, Expect: d.rootRev}}
	if d.workspace != nil {
		ws, err := toUnstructured(d.workspace, tenancyapi.GroupVersion.WithKind("Workspace"))
		if err != nil {
			return 0, err
		}
		writes = append(writes, store.Write{Resource: w.Resource, Cluster: d.parent, Object: ws, Expect: d.workspaceRev})
	}
	rev, err := w.Store.Commit(ctx, writes, turn...)
	if err == nil {
		d.rootRev, d.workspaceRev = rev, rev
	}
	return rev, err
}

// report says in the conditions of the cluster and its Workspace what is left.
func (w *Workspaces) report(ctx context.Context, d *death, rest rest) error {
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

// bury removes, in one transaction, the cluster that has become empty and what
// keeps its Workspace.
func (w *Workspaces) bury(ctx context.Context, d *death) error {
	lc, err := toUnstructured(d.root, core.GroupVersion.WithKind("LogicalCluster"))
	if err != nil {
		return err
	}
	writes := []store.Write{{Resource: LogicalClusters(), Cluster: d.cluster, Object: lc, Expect: d.rootRev, Delete: true}}
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

// release removes what keeps a Workspace that has no cluster of its own.
func (w *Workspaces) release(ctx context.Context, d *death) error {
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

// released returns the write that takes the finalizer of its cluster from a
// Workspace, which is gone with the last one.
func (w *Workspaces) released(d *death) (store.Write, error) {
	ws := d.workspace
	ws.Finalizers = slices.DeleteFunc(ws.Finalizers, func(f string) bool { return d.forced || f == core.LogicalClusterFinalizer })
	ws.Status.Conditions.Set(conditions.Condition{Type: core.WorkspaceContentDeleted, Status: metav1.ConditionTrue})
	u, err := toUnstructured(ws, tenancyapi.GroupVersion.WithKind("Workspace"))
	return store.Write{Resource: w.Resource, Cluster: d.parent, Object: u, Expect: d.workspaceRev, Delete: len(ws.Finalizers) == 0}, err
}
