package tenancy

import (
	"context"
	"errors"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/store"
)

// MakeCluster creates a cluster without a Workspace, unless it exists.
func (w *Workspaces) MakeCluster(ctx context.Context, c cluster.Name) error {
	b := w.birth(c, metav1.Now())
	l := &core.LogicalCluster{ObjectMeta: b.meta("", core.LogicalClusterName)}
	l.Finalizers = []string{core.DeletionFinalizer}
	l.Labels = map[string]string{core.PhaseLabel: string(core.PhaseReady)}
	l.Annotations = map[string]string{core.PathAnnotation: string(c), core.ShardAnnotation: string(w.Shard)}
	l.Spec.DirectlyDeletable = !c.System()
	l.Status.Phase = core.PhaseReady
	l.Status.URL = w.url(string(c))
	w.defaults(ctx, &b, cluster.Path(c))
	bound := b.bound(w) // else a loop completes the bindings
	if bound && len(b.bindings) < 2 {
		boundDefaults(l, b.now)
	}
	lc, err := ClusterWrite(c, l, 0)
	if err != nil {
		return err
	}
	writes := slices.Concat(b.namespace(metav1.NamespaceDefault), []store.Write{lc}, b.first())
	rev, err := w.Store.Commit(ctx, writes, store.Fence{Cluster: c, State: store.Active})
	if errors.Is(err, store.ErrChanged) || storage.IsExist(err) {
		return nil
	}
	if err != nil || len(b.bindings) < 2 {
		return err
	}
	if err := w.bindBetween(ctx, b); err != nil {
		return err
	}
	writes = b.last()
	if bound {
		boundDefaults(l, b.now)
		if lc, err = ClusterWrite(c, l, rev); err != nil {
			return err
		}
		writes = append(slices.Clone(writes), lc)
	}
	if _, err = w.Store.Commit(ctx, writes); storage.IsExist(err) || storage.IsConflict(err) {
		return nil // a loop was faster
	}
	return err
}

// completeAlone makes the second transaction of a cluster without a Workspace. It does
// nothing if the cluster is complete or being deleted.
func (w *Workspaces) completeAlone(ctx context.Context, b birth, l *core.LogicalCluster, rev int64) error {
	if l.DeletionTimestamp != nil {
		return nil
	}
	defaulted := b.bound(w) && boundDefaults(l, b.now)
	if !advance(l, nil, b.now) && !defaulted {
		return nil
	}
	lc, err := ClusterWrite(b.cluster, l, rev)
	if err != nil {
		return err
	}
	system, err := w.missing(ctx, append(b.namespace(metav1.NamespaceSystem), b.last()...))
	if err != nil {
		return err
	}
	_, err = w.Store.Commit(ctx, append(system, lc))
	return err
}
