package tenancy

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/storage"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// Complete advances cluster c and its Workspace as far as possible without initializers. It
// completes an interrupted creation, and makes a cluster ready whose initializers have
// finished. It writes nothing if both are current.
func (w *Workspaces) Complete(ctx context.Context, c cluster.Name) error {
	b := w.birth(c, metav1.Now())
	l, rev, err := read[core.LogicalCluster](ctx, w.Store, clusterKey(c))
	if err != nil || l == nil {
		return err
	}
	if l.Spec.Owner == nil {
		return w.completeAlone(ctx, b, l, rev)
	}
	_, err = w.complete(ctx, b, nil)
	return err
}

// complete makes the second or a later transaction of a workspace. It reads the workspace if
// p is nil, and after concurrent changes. It returns the Workspace, or nil if it or its
// cluster does not exist.
func (w *Workspaces) complete(ctx context.Context, b birth, p *Pair) (done *unstructured.Unstructured, err error) {
	for range retries {
		if p == nil {
			if p, err = w.ReadPair(ctx, b.cluster); err != nil || p == nil || p.Workspace == nil {
				return nil, err
			}
		}
		// Clients can change or delete the workspace after its first transaction.
		if done, err = w.tryComplete(ctx, b, p); !Moved(err) && !apierrors.IsForbidden(err) {
			return done, err
		}
		p = nil
	}
	return nil, err
}

func (w *Workspaces) tryComplete(ctx context.Context, b birth, p *Pair) (*unstructured.Unstructured, error) {
	rev := p.WorkspaceRevision
	unfinished := p.unfinished()
	if unfinished && b.bound(w) {
		boundDefaults(p.Root, b.now)
	}
	changed := p.Root.DeletionTimestamp == nil && advance(p.Root, p.Workspace, b.now)
	done, err := values.Unstructured(p.Workspace, tenancyapi.GroupVersion.WithKind("Workspace"))
	if err != nil {
		return nil, err
	}
	if changed {
		if rev, err = w.write(ctx, b, p, unfinished); err != nil {
			return nil, err
		}
	}
	values.SetCluster(done, p.Parent)
	done.SetResourceVersion(w.Store.ResourceVersion(rev))
	return done, nil
}

// unfinished reports whether a workspace may lack a part of its initial content.
func (p *Pair) unfinished() bool {
	l := p.Root
	return l.Status.Phase == core.PhaseScheduling ||
		l.Status.Phase == core.PhaseInitializing && l.Status.Conditions.Get(core.WorkspaceInitialized) == nil // created by an older server
}

// advance updates the status of a cluster and of its Workspace, if it has one, as far as
// possible without initializers. It reports whether it changed them.
func advance(l *core.LogicalCluster, ws *tenancyapi.Workspace, now metav1.Time) bool {
	changed := false
	if l.Status.Phase == core.PhaseScheduling {
		l.Status.Phase, changed = core.PhaseInitializing, true
		l.Status.Initializers, l.Status.Terminators = slices.Clone(l.Spec.Initializers), slices.Clone(l.Spec.Terminators)
	}
	if l.Status.Phase == core.PhaseInitializing && len(l.Status.Initializers) == 0 {
		l.Status.Phase, changed = core.PhaseReady, true
	}
	changed = l.Status.Conditions.Set(initialized(l, now)) || changed
	if l.Labels[core.PhaseLabel] != string(l.Status.Phase) {
		setLabel(&l.ObjectMeta, core.PhaseLabel, string(l.Status.Phase))
		changed = true
	}
	if l.Status.Phase == core.PhaseReady {
		changed = shrinkOwner(&l.ObjectMeta) || changed
	}
	return ws != nil && mirror(l, ws, now) || changed
}

// initialized returns the condition about the initializers of a cluster.
func initialized(l *core.LogicalCluster, now metav1.Time) conditions.Condition {
	c := conditions.Condition{Type: core.WorkspaceInitialized, Status: metav1.ConditionTrue, LastTransitionTime: now}
	if l.Status.Phase == core.PhaseInitializing {
		c.Status, c.Severity, c.Reason = metav1.ConditionFalse, conditions.SeverityInfo, core.InitializerExists
		c.Message = fmt.Sprintf("Initializers still exist: %v", l.Status.Initializers)
	}
	return c
}

// mirror copies the status of a cluster to its Workspace, and reports whether it changed the
// Workspace. It leaves a Workspace that is being deleted alone: the deletion sets its status.
func mirror(l *core.LogicalCluster, ws *tenancyapi.Workspace, now metav1.Time) bool {
	if ws.DeletionTimestamp != nil {
		return false
	}
	changed := false
	if !slices.Equal(ws.Status.Initializers, l.Status.Initializers) {
		ws.Status.Initializers, changed = l.Status.Initializers, true
	}
	if !slices.Equal(ws.Status.Terminators, l.Status.Terminators) {
		ws.Status.Terminators, changed = l.Status.Terminators, true
	}
	if c := l.Status.Conditions.Get(core.WorkspaceInitialized); c != nil {
		changed = ws.Status.Conditions.Set(*c) || changed
	}
	failing := slices.ContainsFunc(ws.Status.Conditions, func(c conditions.Condition) bool { return tree.MakesUnavailable(string(c.Type), string(c.Status)) })
	if p := tree.AvailablePhase(l.Status.Phase, failing); ws.Status.Phase != p || ws.Labels[core.PhaseLabel] != string(p) {
		SetPhase(ws, p, now)
		changed = true
	}
	if l.Status.Phase == core.PhaseReady {
		changed = shrinkOwner(&ws.ObjectMeta) || changed
	}
	return changed
}

// shrinkOwner reduces the owner annotation of an object to the name of the user, and reports
// whether it changed the annotation.
func shrinkOwner(m *metav1.ObjectMeta) bool {
	text, ok := m.Annotations[tenancyapi.OwnerAnnotation]
	if !ok {
		return false
	}
	var owner core.UserInfo
	if err := json.Unmarshal([]byte(text), &owner); err != nil {
		return false
	}
	name, err := json.Marshal(core.UserInfo{Username: owner.Username})
	if err != nil || string(name) == text {
		return false
	}
	m.Annotations[tenancyapi.OwnerAnnotation] = string(name)
	return true
}

// write writes a workspace and its cluster. If unfinished is set, it also creates the
// missing objects of the initial content.
func (w *Workspaces) write(ctx context.Context, b birth, p *Pair, unfinished bool) (int64, error) {
	lc, err := ClusterWrite(p.Cluster, p.Root, p.RootRevision)
	if err != nil {
		return 0, err
	}
	ws, err := w.WorkspaceWrite(p.Parent, p.Workspace, p.WorkspaceRevision)
	if err != nil {
		return 0, err
	}
	last := []store.Write{ws, lc} // the Workspace first: clients see it before its cluster is Ready
	if !unfinished {
		return w.Store.Commit(ctx, last)
	}
	last = append(last, b.last()...)
	system := b.namespace(metav1.NamespaceSystem)
	rev, err := w.Store.Commit(ctx, append(system, last...))
	if storage.IsExist(err) {
		if system, err = w.missing(ctx, append(system, b.last()...)); err == nil {
			last = last[:len(last)-len(b.last())]
			rev, err = w.Store.Commit(ctx, append(system, last...))
		}
	}
	return rev, err
}
