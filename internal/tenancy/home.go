package tenancy

import (
	"context"
	"encoding/json"
	"errors"
	"unicode/utf8"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/storage"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
)

// HomeName is the name of the Workspace in the root workspace that represents the home of
// the requesting user. That Workspace is not stored.
const HomeName = "~"

const (
	homeType = "home"
	// homeRole allows users to have a home. homeBinding binds it.
	homeRole    = "system:kcp:home-clusterworkspace-create"
	homeBinding = "system:kcp:configured-group:home-clusterworkspace-create"
)

// Errors of [Workspaces.Home].
var (
	// ErrHomeless means that a user cannot have a home.
	ErrHomeless = errors.New("there is no home workspace for this user")
	// ErrHomeWaits means that a home is not ready; callers may retry.
	ErrHomeWaits = errors.New("the home workspace is not ready")
)

// Home returns the Workspace of the home of a user, ready to be used. It creates a missing
// home, in two transactions as any workspace, if permitted returns no error. Only its
// cluster is stored. The cluster's name is derived from the user's name, so all processes
// find the same one, and concurrent creations create one.
func (w *Workspaces) Home(ctx context.Context, u user.Info, permitted func() error) (*tenancyapi.Workspace, error) {
	name := w.NameElsewhere(cluster.Root, u)
	if name == "" || name == user.Anonymous || !utf8.ValidString(name) {
		return nil, ErrHomeless
	}
	b := w.birth(cluster.Home(name), metav1.Now())
	for range retries {
		l, rev, err := read[core.LogicalCluster](ctx, w.Store, clusterKey(b.cluster))
		if err != nil {
			return nil, err
		}
		switch {
		case l == nil:
			if err := permitted(); err != nil {
				return nil, err
			}
			// Complete the home even if the client disconnects.
			err = w.createFirstHome(context.WithoutCancel(ctx), &b, name, u)
		case l.Spec.CreatedBy == nil || l.Spec.CreatedBy.Username != name:
			return nil, ErrHomeless // the name of another user has the same hash
		case l.DeletionTimestamp != nil:
			return nil, ErrHomeWaits
		case l.Status.Phase == core.PhaseInitializing && len(l.Status.Initializers) > 0:
			return nil, ErrHomeWaits
		case l.Status.Phase == core.PhaseScheduling || l.Status.Phase == core.PhaseInitializing:
			err = w.completeAlone(context.WithoutCancel(ctx), b, l, rev)
		default:
			return w.homeWorkspace(b, l), nil
		}
		if err != nil && !Moved(err) && !storage.IsExist(err) && !apierrors.IsForbidden(err) {
			return nil, err
		}
	}
	return nil, ErrHomeWaits
}

// createFirstHome makes the first transaction of a home.
func (w *Workspaces) createFirstHome(ctx context.Context, b *birth, name string, u user.Info) error {
	owner, err := json.Marshal(core.UserInfo{Username: name})
	if err != nil {
		return err
	}
	l := &core.LogicalCluster{ObjectMeta: b.meta("", core.LogicalClusterName)}
	l.Finalizers = []string{core.DeletionFinalizer}
	l.Labels = map[string]string{core.PhaseLabel: string(core.PhaseScheduling)}
	l.Annotations = map[string]string{
		core.PathAnnotation: string(cluster.HomePath(name)), core.ShardAnnotation: string(w.Shard),
		tenancyapi.TypeAnnotation:  string(cluster.Path(cluster.Root).Join(homeType)),
		tenancyapi.OwnerAnnotation: string(owner),
	}
	l.Spec.DirectlyDeletable = true
	l.Spec.CreatedBy = &core.UserInfo{Username: name, UID: u.GetUID(), Groups: u.GetGroups()}
	// Without the type, users get a home without initializers.
	if t, err := w.Types.Template(ctx, cluster.Root, tenancyapi.WorkspaceTypeReference{Name: homeType, Path: string(cluster.Root)}); err == nil {
		b.template, l.Spec.Terminators = t, t.Terminators
	}
	w.defaults(ctx, b, cluster.HomePath(name))
	l.Spec.Initializers = b.initializers()
	l.Status.Phase = core.PhaseScheduling
	l.Status.URL = w.url(string(b.cluster))
	lc, err := ClusterWrite(b.cluster, l, 0)
	if err != nil {
		return err
	}
	writes := append(b.namespace(metav1.NamespaceDefault), lc)
	if admin := b.admin(name); w.Store.Serves(admin.Resource) {
		writes = append(writes, admin)
	}
	if _, err = w.Store.Commit(ctx, append(writes, b.first()...), store.Fence{Cluster: b.cluster, State: store.Active}); err != nil {
		b.made = false
		return err
	}
	b.partial = w.bindBetween(ctx, *b) != nil // a loop makes them
	return nil
}

// homeWorkspace returns a Workspace that represents a home.
func (w *Workspaces) homeWorkspace(b birth, l *core.LogicalCluster) *tenancyapi.Workspace {
	return &tenancyapi.Workspace{
		TypeMeta: metav1.TypeMeta{APIVersion: tenancyapi.GroupVersion.String(), Kind: "Workspace"},
		ObjectMeta: metav1.ObjectMeta{
			Name: core.LogicalClusterName, CreationTimestamp: l.CreationTimestamp,
			Annotations: map[string]string{cluster.Annotation: string(cluster.Root)},
		},
		Spec: tenancyapi.WorkspaceSpec{
			Type:    &tenancyapi.WorkspaceTypeReference{Name: homeType, Path: string(cluster.Root)},
			Cluster: string(b.cluster), URL: w.url(string(b.cluster)),
		},
		Status: tenancyapi.WorkspaceStatus{Phase: l.Status.Phase, Conditions: l.Status.Conditions, Initializers: l.Status.Initializers},
	}
}

// AllowHomes allows homes for the members of groups, and for no other users.
func (w *Workspaces) AllowHomes(ctx context.Context, groups []string) error {
	b := w.birth(cluster.Root, metav1.Now())
	role := b.write(native(rbacv1.GroupName, "clusterroles"), &rbacv1.ClusterRole{
		ObjectMeta: b.meta("", homeRole),
		Rules: []rbacv1.PolicyRule{{
			Verbs: []string{"get", "create"}, APIGroups: []string{tenancyapi.GroupVersion.Group}, Resources: []string{"workspaces"}, ResourceNames: []string{HomeName},
		}},
	})
	if err := ensure(ctx, w.Store, role); err != nil || !w.Store.Serves(role.Resource) {
		return err
	}
	var subjects []rbacv1.Subject
	for _, g := range groups {
		subjects = append(subjects, rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: g})
	}
	key := keys.Key{Resource: native(rbacv1.GroupName, "clusterrolebindings"), Cluster: cluster.Root, Name: homeBinding}
	for range retries {
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: b.meta("", homeBinding), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: homeRole},
		}
		stored, rev, err := w.Store.Read(ctx, key)
		if err != nil {
			return err
		}
		if stored != nil {
			if binding, err = Native[rbacv1.ClusterRoleBinding](stored); err != nil {
				return err
			}
			if equality.Semantic.DeepEqual(binding.Subjects, subjects) {
				return nil
			}
			binding = binding.DeepCopy()
			binding.ResourceVersion = ""
		}
		binding.Subjects = subjects
		if _, err = w.Store.Commit(ctx, []store.Write{{Resource: key.Resource, Cluster: key.Cluster, Object: binding, Expect: rev}}); !Moved(err) && !storage.IsExist(err) {
			return err
		}
	}
	return apierrors.NewServerTimeout(key.Resource.GroupResource(), "update", 1)
}
