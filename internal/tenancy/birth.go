package tenancy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
)

// maxNameAttempts limits the attempts to find an unused name for a cluster.
const maxNameAttempts = 5

type creatorKey struct{}

// WithCreator returns a context for a request whose new workspaces have u as their creator.
// Views use it if the user of the request is u with rights in one cluster alone.
func WithCreator(ctx context.Context, u user.Info) context.Context {
	return context.WithValue(ctx, creatorKey{}, u)
}

// creatorFrom returns the creator of new workspaces of a request, nil if there is none.
func creatorFrom(ctx context.Context) user.Info {
	if u, ok := ctx.Value(creatorKey{}).(user.Info); ok {
		return u
	}
	u, _ := request.UserFrom(ctx)
	return u
}

// Create stores a new Workspace in cluster parent together with its cluster, in two
// transactions. It returns when both are Ready or, if their type has initializers,
// Initializing. It is a [store.CreateHook].
//
// The first transaction compares the fence of the parent and creates that of the child, so
// that no workspace is created in a cluster that is being deleted. The second completes it.
// [Workspaces.Complete] completes workspaces whose second transaction is missing.
func (w *Workspaces) Create(ctx context.Context, parent cluster.Name, obj *unstructured.Unstructured) error {
	ws, err := values.Typed[tenancyapi.Workspace](obj)
	if err != nil {
		return err
	}
	if ws.Spec.Mount != nil {
		return w.createMounted(ctx, parent, ws, obj)
	}
	host, fits := w.host(ws)
	if !fits {
		return w.createUnscheduled(ctx, parent, ws, obj)
	}
	b := w.birth("", metav1.Now())
	b.host = host
	done, err := w.place(ctx, b, parent, ws, creatorFrom(ctx))
	if err == nil {
		obj.Object = done.Object
	}
	return err
}

// place gives a Workspace its cluster on the shard of b, and returns the Workspace.
func (w *Workspaces) place(ctx context.Context, b birth, parent cluster.Name, ws *tenancyapi.Workspace, creator user.Info) (_ *unstructured.Unstructured, err error) {
	if ws.Spec.Type != nil {
		if b.template, err = w.Types.Template(ctx, parent, *ws.Spec.Type); err != nil {
			return nil, apierrors.NewForbidden(w.Resource.GroupResource(), ws.Name, err) // the type was deleted after admission
		}
	}
	if _, known := w.Tree.Cluster(parent); !known {
		w.Tree.Fresh(ctx) // another process may have created it just now
	}
	for range maxNameAttempts {
		b.cluster = cluster.NewName()
		w.defaults(ctx, &b, w.Tree.PathOf(parent).Join(ws.Name))
		p, err := w.createFirst(ctx, b, parent, ws, creator)
		if errors.Is(err, store.ErrChanged) {
			continue
		}
		if err != nil {
			return nil, err
		}
		b.partial = w.bindBetween(context.WithoutCancel(ctx), b) != nil // a loop makes them
		// Complete the workspace even if the client disconnects.
		done, err := w.complete(context.WithoutCancel(ctx), b, p)
		if err == nil && done == nil {
			return nil, apierrors.NewConflict(w.Resource.GroupResource(), ws.Name, errors.New("it was deleted during its creation"))
		}
		if err != nil {
			return nil, fmt.Errorf("workspace %s was created but is not ready: %w", ws.Name, err)
		}
		return done, nil
	}
	return nil, fmt.Errorf("no unused name for the cluster of workspace %s", ws.Name)
}

// createFirst makes the first transaction of a workspace.
func (w *Workspaces) createFirst(ctx context.Context, b birth, parent cluster.Name, ws *tenancyapi.Workspace, creator user.Info) (*Pair, error) {
	path := w.Tree.PathOf(parent).Join(ws.Name)
	child := ws.DeepCopy()
	child.Spec.Cluster = string(b.cluster)
	child.Spec.URL = w.url(string(path))
	if !slices.Contains(child.Finalizers, core.LogicalClusterFinalizer) {
		child.Finalizers = append(child.Finalizers, core.LogicalClusterFinalizer)
	}
	w.Shard.hosts(&child.ObjectMeta)
	if b.host.Region != "" {
		setLabel(&child.ObjectMeta, tenancyapi.RegionLabel, b.host.Region)
	}
	setAnnotation(&child.ObjectMeta, tenancyapi.ChosenClusterAnnotation, string(b.cluster))
	if len(b.initializers()) == 0 {
		shrinkOwner(&child.ObjectMeta) // no initializer needs the rest
	}
	SetPhase(child, core.PhaseScheduling, b.now)
	workspace, err := w.WorkspaceWrite(parent, child, b.at)
	if err != nil {
		return nil, err
	}
	l := w.logicalCluster(b, parent, path, child, creator)
	lc, err := ClusterWrite(b.cluster, l, 0)
	if err != nil {
		return nil, err
	}
	writes := append(b.namespace(metav1.NamespaceDefault), workspace, lc)
	if creator != nil && creator.GetName() != "" {
		if admin := b.admin(w.NameElsewhere(parent, creator)); w.Store.Serves(admin.Resource) {
			writes = append(writes, admin)
		}
	}
	rev, err := w.Store.Commit(ctx, append(writes, b.first()...), store.Fence{Cluster: b.cluster, State: store.Active})
	return &Pair{Cluster: b.cluster, Root: l, RootRevision: rev, Parent: parent, Workspace: child, WorkspaceRevision: rev}, err
}

// logicalCluster returns the LogicalCluster of a new workspace.
func (w *Workspaces) logicalCluster(b birth, parent cluster.Name, path cluster.Path, ws *tenancyapi.Workspace, creator user.Info) *core.LogicalCluster {
	l := &core.LogicalCluster{ObjectMeta: b.meta("", core.LogicalClusterName)}
	l.Finalizers = []string{core.DeletionFinalizer}
	l.Labels = map[string]string{core.PhaseLabel: string(core.PhaseScheduling)}
	l.Annotations = map[string]string{core.PathAnnotation: string(path), core.ShardAnnotation: string(w.Shard)}
	if t := b.template; t != nil {
		l.Annotations[tenancyapi.TypeAnnotation] = t.String()
		l.Spec.Terminators = t.Terminators
	}
	l.Spec.Initializers = b.initializers()
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
		l.Spec.CreatedBy = &core.UserInfo{Username: creator.GetName(), UID: creator.GetUID(), Groups: creator.GetGroups(), Extra: creator.GetExtra()}
	}
	l.Status.Phase = core.PhaseScheduling
	l.Status.URL = w.url(string(b.cluster))
	return l
}

// missing returns the writes whose objects do not exist.
func (w *Workspaces) missing(ctx context.Context, writes []store.Write) ([]store.Write, error) {
	var missing []store.Write
	for _, write := range writes {
		o, err := meta.Accessor(write.Object)
		if err != nil {
			return nil, err
		}
		found, _, err := w.Store.Read(ctx, keys.Key{Resource: write.Resource, Cluster: write.Cluster, Namespace: o.GetNamespace(), Name: o.GetName()})
		if err != nil {
			return nil, err
		}
		if found == nil {
			missing = append(missing, write)
		}
	}
	return missing, nil
}

// read returns a stored custom resource, nil if there is none, and its revision.
func read[T any](ctx context.Context, s *store.Store, k keys.Key) (*T, int64, error) {
	t := new(T)
	rev, err := s.ReadInto(ctx, k, t)
	if err != nil || rev == 0 {
		return nil, rev, err
	}
	return t, rev, nil
}

// SetPhase sets the phase of a workspace, with its label.
func SetPhase(ws *tenancyapi.Workspace, p core.Phase, now metav1.Time) {
	ws.Status.Phase = p
	setLabel(&ws.ObjectMeta, core.PhaseLabel, string(p))
	ws.Status.Conditions.Set(conditions.Condition{Type: tenancyapi.WorkspaceScheduled, Status: "True", LastTransitionTime: now})
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
