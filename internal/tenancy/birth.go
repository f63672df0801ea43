package tenancy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/store"
)

// names bounds how often another name is drawn for a cluster.
const names = 5

// Create stores a new Workspace in cluster parent together with its cluster, in a
// chain of two transactions, and returns when both are Ready. It is a
// [store.CreateHook].
//
// The first transaction compares the fence of the parent and makes that of the
// child, so that no workspace is born in a cluster that is going away; the second
// completes it. [Workspaces.Complete] takes up a chain that was cut in between.
func (w *Workspaces) Create(ctx context.Context, parent cluster.Name, obj *unstructured.Unstructured) error {
	ws, err := fromUnstructured[tenancyapi.Workspace](obj)
	if err != nil {
		return err
	}
	creator, _ := request.UserFrom(ctx)
	b := w.birth("", metav1.Now())
	for range names {
		b.cluster = cluster.NewName()
		y, err := w.conceive(ctx, b, parent, ws, creator)
		if errors.Is(err, store.ErrChanged) {
			continue
		}
		if err != nil {
			return err
		}
		// What has begun is brought to its end even if the client went away.
		done, err := w.complete(context.WithoutCancel(ctx), b, y)
		if err == nil && done == nil {
			return apierrors.NewConflict(w.Resource.GroupResource(), ws.Name, errors.New("it was deleted while it was being made"))
		}
		if err != nil {
			return fmt.Errorf("workspace %s was made but is not ready: %w", ws.Name, err)
		}
		obj.Object = done.Object
		return nil
	}
	return fmt.Errorf("no unused name for the cluster of workspace %s", ws.Name)
}

// conceive is the first transaction of a workspace.
func (w *Workspaces) conceive(ctx context.Context, b birth, parent cluster.Name, ws *tenancyapi.Workspace, creator user.Info) (*young, error) {
	if _, known := w.Tree.Cluster(parent); !known {
		w.Tree.fresh(ctx) // another process may just have made it
	}
	path := w.Tree.PathOf(parent).Join(ws.Name)
	child := ws.DeepCopy()
	child.Spec.Cluster = string(b.cluster)
	child.Spec.URL = w.url(string(path))
	if !slices.Contains(child.Finalizers, core.LogicalClusterFinalizer) {
		child.Finalizers = append(child.Finalizers, core.LogicalClusterFinalizer)
	}
	setAnnotation(&child.ObjectMeta, core.ShardAnnotation, ShardName)
	setPhase(child, core.PhaseInitializing, b.now)
	stored, err := toUnstructured(child, tenancyapi.GroupVersion.WithKind("Workspace"))
	if err != nil {
		return nil, err
	}
	l := w.logicalCluster(b, parent, path, child, creator)
	lc, err := toUnstructured(l, core.GroupVersion.WithKind("LogicalCluster"))
	if err != nil {
		return nil, err
	}
	writes := append(b.namespace(metav1.NamespaceDefault),
		store.Write{Resource: w.Resource, Cluster: parent, Object: stored}, b.write(LogicalClusters(), lc))
	if creator != nil && creator.GetName() != "" {
		if admin := b.admin(w.NameElsewhere(parent, creator)); w.Store.Serves(admin.Resource) {
			writes = append(writes, admin)
		}
	}
	rev, err := w.Store.Commit(ctx, writes, store.Fence{Cluster: b.cluster, State: store.Active})
	return &young{cluster: l, clusterAt: rev, workspace: child, workspaceAt: rev}, err
}

// A young workspace is one after its first transaction: its LogicalCluster and its
// Workspace, each with the revision that it is at.
type young struct {
	cluster     *core.LogicalCluster
	clusterAt   int64
	workspace   *tenancyapi.Workspace
	workspaceAt int64
}

// logicalCluster returns the LogicalCluster of a workspace that is being made.
func (w *Workspaces) logicalCluster(b birth, parent cluster.Name, path cluster.Path, ws *tenancyapi.Workspace, creator user.Info) *core.LogicalCluster {
	l := &core.LogicalCluster{ObjectMeta: b.meta("", core.LogicalClusterName)}
	l.Finalizers = []string{core.DeletionFinalizer}
	l.Labels = map[string]string{core.PhaseLabel: string(core.PhaseInitializing)}
	l.Annotations = map[string]string{core.PathAnnotation: string(path), core.ShardAnnotation: ShardName}
	if t := ws.Spec.Type; t != nil {
		l.Annotations[tenancyapi.TypeAnnotation] = t.Path + ":" + t.Name
	}
	if groups, ok := ws.Annotations[core.RequiredGroupsAnnotation]; ok {
		l.Annotations[core.RequiredGroupsAnnotation] = groups
	}
	if owner, ok := ws.Annotations[tenancyapi.OwnerAnnotation]; ok {
		l.Annotations[tenancyapi.OwnerAnnotation] = owner
	}
	l.Spec.Owner = &core.Owner{
		APIVersion: tenancyapi.GroupVersion.String(), Resource: "workspaces",
		Cluster: string(parent), Name: ws.Name, UID: ws.UID,
	}
	if creator != nil {
		l.Spec.CreatedBy = &core.UserInfo{Username: creator.GetName(), UID: creator.GetUID(), Groups: creator.GetGroups()}
	}
	l.Status.Phase = core.PhaseInitializing
	l.Status.URL = w.url(string(b.cluster))
	return l
}

// Complete takes up the making of cluster c where it was cut. It does nothing for
// one that is whole.
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

// complete makes the second transaction of a workspace, which is read anew where it
// is not known. It returns the Workspace, or nil if that, or its cluster, is gone.
func (w *Workspaces) complete(ctx context.Context, b birth, y *young) (done *unstructured.Unstructured, err error) {
	for range retries {
		if y == nil {
			if y, err = w.readYoung(ctx, b.cluster); err != nil || y == nil {
				return nil, err
			}
		}
		// It may be changed, and even deleted, as soon as it is there.
		if done, err = w.tryComplete(ctx, b, y); !moved(err) && !apierrors.IsForbidden(err) {
			return done, err
		}
		y = nil
	}
	return nil, err
}

// readYoung reads the workspace of cluster c, nil if there is none.
func (w *Workspaces) readYoung(ctx context.Context, c cluster.Name) (*young, error) {
	y := &young{}
	var err error
	if y.cluster, y.clusterAt, err = read[core.LogicalCluster](ctx, w.Store, clusterKey(c)); err != nil || y.cluster == nil || y.cluster.Spec.Owner == nil {
		return nil, err
	}
	owner := y.cluster.Spec.Owner
	key := store.Key{Resource: w.Resource, Cluster: cluster.Name(owner.Cluster), Name: owner.Name}
	if y.workspace, y.workspaceAt, err = read[tenancyapi.Workspace](ctx, w.Store, key); err != nil || y.workspace == nil || y.workspace.UID != owner.UID {
		return nil, err
	}
	return y, nil
}

func (w *Workspaces) tryComplete(ctx context.Context, b birth, y *young) (*unstructured.Unstructured, error) {
	rev := y.workspaceAt
	var done *unstructured.Unstructured
	parent := cluster.Name(y.cluster.Spec.Owner.Cluster)
	if l := y.cluster; l.Status.Phase == core.PhaseInitializing && len(l.Status.Initializers) == 0 && l.DeletionTimestamp == nil {
		l.Status.Phase = core.PhaseReady
		setLabel(&l.ObjectMeta, core.PhaseLabel, string(core.PhaseReady))
		l.Status.Conditions.Set(conditions.Condition{Type: core.WorkspaceInitialized, Status: "True", LastTransitionTime: b.now})
		setPhase(y.workspace, core.PhaseReady, b.now)
		var err error
		if done, rev, err = w.finish(ctx, b, y); err != nil {
			return nil, err
		}
	} else {
		var err error
		if done, err = toUnstructured(y.workspace, tenancyapi.GroupVersion.WithKind("Workspace")); err != nil {
			return nil, err
		}
	}
	stampCluster(done, parent)
	done.SetResourceVersion(strconv.FormatInt(rev, 10))
	return done, nil
}

// finish writes what completes a workspace and its cluster, and returns the Workspace.
// What another attempt has written already is left out.
func (w *Workspaces) finish(ctx context.Context, b birth, y *young) (*unstructured.Unstructured, int64, error) {
	lc, err := toUnstructured(y.cluster, core.GroupVersion.WithKind("LogicalCluster"))
	if err != nil {
		return nil, 0, err
	}
	ws, err := toUnstructured(y.workspace, tenancyapi.GroupVersion.WithKind("Workspace"))
	if err != nil {
		return nil, 0, err
	}
	last := []store.Write{
		{Resource: LogicalClusters(), Cluster: b.cluster, Object: lc, Expect: y.clusterAt},
		{Resource: w.Resource, Cluster: cluster.Name(y.cluster.Spec.Owner.Cluster), Object: ws, Expect: y.workspaceAt},
	}
	system := b.namespace(metav1.NamespaceSystem)
	rev, err := w.Store.Commit(ctx, append(system, last...))
	if storage.IsExist(err) {
		if system, err = w.missing(ctx, system); err == nil {
			rev, err = w.Store.Commit(ctx, append(system, last...))
		}
	}
	return ws, rev, err
}

// missing returns those of the writes whose objects do not exist.
func (w *Workspaces) missing(ctx context.Context, writes []store.Write) ([]store.Write, error) {
	var missing []store.Write
	for _, write := range writes {
		o, err := meta.Accessor(write.Object)
		if err != nil {
			return nil, err
		}
		found, _, err := w.Store.Read(ctx, store.Key{Resource: write.Resource, Cluster: write.Cluster, Namespace: o.GetNamespace(), Name: o.GetName()})
		if err != nil {
			return nil, err
		}
		if found == nil {
			missing = append(missing, write)
		}
	}
	return missing, nil
}

func stampCluster(u *unstructured.Unstructured, c cluster.Name) {
	annotations := u.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[cluster.Annotation] = string(c)
	u.SetAnnotations(annotations)
}

// read returns a stored custom resource, nil if there is none, and its revision.
func read[T any](ctx context.Context, s *store.Store, k store.Key) (*T, int64, error) {
	t := new(T)
	rev, err := s.ReadInto(ctx, k, t)
	if err != nil || rev == 0 {
		return nil, rev, err
	}
	return t, rev, nil
}

// setPhase sets the phase of a workspace, and what goes with it.
func setPhase(ws *tenancyapi.Workspace, p core.Phase, now metav1.Time) {
	ws.Status.Phase = p
	setLabel(&ws.ObjectMeta, core.PhaseLabel, string(p))
	ws.Status.Conditions.Set(conditions.Condition{Type: tenancyapi.WorkspaceScheduled, Status: "True", LastTransitionTime: now})
	if p == core.PhaseReady {
		ws.Status.Conditions.Set(conditions.Condition{Type: tenancyapi.WorkspaceInitialized, Status: "True", LastTransitionTime: now})
	}
}

func setLabel(m *metav1.ObjectMeta, key, value string) {
	if m.Labels == nil {
		m.Labels = map[string]string{}
	}
	m.Labels[key] = value
}

func setAnnotation(m *metav1.ObjectMeta, key, value string) {
	if m.Annotations == nil {
		m.Annotations = map[string]string{}
	}
	m.Annotations[key] = value
}
