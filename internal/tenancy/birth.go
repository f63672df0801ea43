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
		err := w.conceive(ctx, b, parent, ws, creator)
		if errors.Is(err, store.ErrChanged) {
			continue
		}
		if err != nil {
			return err
		}
		// What has begun is brought to its end even if the client went away.
		done, err := w.complete(context.WithoutCancel(ctx), b)
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
func (w *Workspaces) conceive(ctx context.Context, b birth, parent cluster.Name, ws *tenancyapi.Workspace, creator user.Info) error {
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
		return err
	}
	lc, err := toUnstructured(w.logicalCluster(b, parent, path, child, creator), core.GroupVersion.WithKind("LogicalCluster"))
	if err != nil {
		return err
	}
	writes := append(b.namespace(metav1.NamespaceDefault),
		store.Write{Resource: w.Resource, Cluster: parent, Object: stored}, b.write(LogicalClusters(), lc))
	if creator != nil && creator.GetName() != "" {
		if admin := b.admin(creator.GetName()); w.Store.Serves(admin.Resource) {
			writes = append(writes, admin)
		}
	}
	_, err = w.Store.Commit(ctx, writes, store.Fence{Cluster: b.cluster, State: store.Active})
	return err
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
	_, err := w.complete(ctx, w.birth(c, metav1.Now()))
	return err
}

// complete makes the second transaction of a workspace. It returns the Workspace,
// or nil if that, or its cluster, is gone.
func (w *Workspaces) complete(ctx context.Context, b birth) (done *unstructured.Unstructured, err error) {
	for range retries {
		// It may be changed, and even deleted, as soon as it is there.
		if done, err = w.tryComplete(ctx, b); !moved(err) && !apierrors.IsForbidden(err) {
			return done, err
		}
	}
	return nil, err
}

func (w *Workspaces) tryComplete(ctx context.Context, b birth) (*unstructured.Unstructured, error) {
	l, lrev, err := read[core.LogicalCluster](ctx, w.Store, clusterKey(b.cluster))
	if err != nil || l == nil || l.Spec.Owner == nil {
		return nil, err
	}
	key := store.Key{Resource: w.Resource, Cluster: cluster.Name(l.Spec.Owner.Cluster), Name: l.Spec.Owner.Name}
	ws, wrev, err := read[tenancyapi.Workspace](ctx, w.Store, key)
	if err != nil || ws == nil || ws.UID != l.Spec.Owner.UID {
		return nil, err
	}
	rev := wrev
	if l.Status.Phase == core.PhaseInitializing && l.DeletionTimestamp == nil {
		l.Status.Phase = core.PhaseReady
		l.Labels[core.PhaseLabel] = string(core.PhaseReady)
		l.Status.Conditions.Set(conditions.Condition{Type: core.WorkspaceInitialized, Status: "True", LastTransitionTime: b.now})
		setPhase(ws, core.PhaseReady, b.now)
		if rev, err = w.finish(ctx, b, l, lrev, store.Write{Resource: w.Resource, Cluster: key.Cluster, Object: ws, Expect: wrev}); err != nil {
			return nil, err
		}
	}
	done, err := toUnstructured(ws, tenancyapi.GroupVersion.WithKind("Workspace"))
	if err != nil {
		return nil, err
	}
	stampCluster(done, key.Cluster)
	done.SetResourceVersion(strconv.FormatInt(rev, 10))
	return done, nil
}

// finish writes what completes a workspace and its cluster. What another attempt
// has written already is left out.
func (w *Workspaces) finish(ctx context.Context, b birth, l *core.LogicalCluster, lrev int64, ws store.Write) (int64, error) {
	lc, err := toUnstructured(l, core.GroupVersion.WithKind("LogicalCluster"))
	if err != nil {
		return 0, err
	}
	object, ok := ws.Object.(*tenancyapi.Workspace)
	if !ok {
		return 0, fmt.Errorf("workspace is a %T", ws.Object)
	}
	if ws.Object, err = toUnstructured(object, tenancyapi.GroupVersion.WithKind("Workspace")); err != nil {
		return 0, err
	}
	last := []store.Write{{Resource: LogicalClusters(), Cluster: b.cluster, Object: lc, Expect: lrev}, ws}
	system := b.namespace(metav1.NamespaceSystem)
	rev, err := w.Store.Commit(ctx, append(system, last...))
	if storage.IsExist(err) {
		if system, err = w.missing(ctx, system); err == nil {
			rev, err = w.Store.Commit(ctx, append(system, last...))
		}
	}
	return rev, err
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
	o, rev, err := s.Read(ctx, k)
	if err != nil || o == nil {
		return nil, 0, err
	}
	t, err := fromUnstructured[T](o)
	return t, rev, err
}

// setPhase sets the phase of a workspace, and what goes with it.
func setPhase(ws *tenancyapi.Workspace, p core.Phase, now metav1.Time) {
	ws.Status.Phase = p
	if ws.Labels == nil {
		ws.Labels = map[string]string{}
	}
	ws.Labels[core.PhaseLabel] = string(p)
	ws.Status.Conditions.Set(conditions.Condition{Type: tenancyapi.WorkspaceScheduled, Status: "True", LastTransitionTime: now})
	if p == core.PhaseReady {
		ws.Status.Conditions.Set(conditions.Condition{Type: tenancyapi.WorkspaceInitialized, Status: "True", LastTransitionTime: now})
	}
}

func setAnnotation(m *metav1.ObjectMeta, key, value string) {
	if m.Annotations == nil {
		m.Annotations = map[string]string{}
	}
	m.Annotations[key] = value
}
