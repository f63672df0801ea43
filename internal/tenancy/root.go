package tenancy

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/storage"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

const (
	// ShardExport is the name of the export of Shards.
	ShardExport = "shards.core.kcp.io"
	// TopologyExport is the name of the export of Partitions, and CacheExport that of
	// ClusterCachedResources.
	TopologyExport, CacheExport = "topology.kcp.io", "cache.kcp.io"
	// ExportsNamespace has the secrets of the identities of exports.
	ExportsNamespace = "kcp-system"
	// Export is the name of the export of Workspaces.
	Export = "tenancy.kcp.io"
	// IdentityKey is the key of the identity in the data of such a secret.
	IdentityKey = "key"
	// bootstrapper is the name of the owner of the root workspace.
	bootstrapper = "system:kcp-bootstrapper"
)

// Identity returns the identity of a built-in export: the SHA-256 of a secret in the root
// workspace. The first start that has the export creates the secret.
func Identity(ctx context.Context, s *store.Store, rootCA, export string) (string, error) {
	if err := fence(ctx, s, cluster.Root); err != nil {
		return "", err
	}
	secret, err := identitySecret(ctx, s, export)
	if err != nil {
		return "", err
	}
	if secret == nil {
		if _, rev, err := s.Read(ctx, keys.Key{Resource: tree.LogicalClusters(), Cluster: cluster.Root, Name: core.LogicalClusterName}); err != nil || rev != 0 && export == Export {
			return "", errors.Join(fmt.Errorf("secret %s/%s in the root workspace is missing: restore a backup of etcd, as the workspaces are stored under the hash of the secret", ExportsNamespace, export), err)
		}
		b := birth{now: metav1.Now().Rfc3339Copy(), cluster: cluster.Root, rootCA: rootCA}
		secret = &corev1.Secret{ObjectMeta: b.meta(ExportsNamespace, export), Type: corev1.SecretTypeOpaque,
			Data: map[string][]byte{IdentityKey: []byte(rand.Text() + rand.Text())}}
		err := ensure(ctx, s, append(b.namespace(ExportsNamespace), b.write(native("", "secrets"), secret))...)
		if err != nil {
			return "", err
		}
		if secret, err = identitySecret(ctx, s, export); err != nil {
			return "", err
		}
	}
	key := secret.Data[IdentityKey]
	if len(key) == 0 {
		return "", fmt.Errorf("secret %s/%s in the root workspace has no %q: restore it from a backup, as its objects are stored under its hash", ExportsNamespace, export, IdentityKey)
	}
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:]), nil
}

func identitySecret(ctx context.Context, s *store.Store, export string) (*corev1.Secret, error) {
	o, _, err := s.Read(ctx, keys.Key{Resource: native("", "secrets"), Cluster: cluster.Root, Namespace: ExportsNamespace, Name: export})
	if err != nil || o == nil {
		return nil, err
	}
	return Native[corev1.Secret](o)
}

// fence creates the fence of a cluster, if it has none.
func fence(ctx context.Context, s *store.Store, c cluster.Name) error {
	state, err := s.State(ctx, c)
	if err != nil || state != store.Gone {
		return err
	}
	if _, err = s.Commit(ctx, nil, store.Fence{Cluster: c, State: store.Active}); errors.Is(err, store.ErrChanged) {
		return nil // another process was first
	}
	return err
}

// ensure creates missing objects, each in a transaction of its own, namespaces first. It
// skips kinds that this server does not serve.
func ensure(ctx context.Context, s *store.Store, writes ...store.Write) error {
	isNamespace := func(w store.Write) bool { return w.Resource == native("", "namespaces") }
	slices.SortStableFunc(writes, func(a, b store.Write) int {
		switch {
		case isNamespace(a) == isNamespace(b):
			return 0
		case isNamespace(a):
			return -1
		default:
			return 1
		}
	})
	for _, w := range writes {
		if !s.Serves(w.Resource) {
			continue
		}
		if _, err := s.Commit(ctx, []store.Write{w}); err != nil && !storage.IsExist(err) {
			return err
		}
	}
	return nil
}

// MakeSystem creates a cluster of the server's own, unless it exists.
func (w *Workspaces) MakeSystem(ctx context.Context, c cluster.Name) error {
	return fence(ctx, w.Store, c)
}

// MakeNamespace creates a namespace with the objects that every namespace has, unless it
// exists.
func (w *Workspaces) MakeNamespace(ctx context.Context, c cluster.Name, name string) error {
	b := w.birth(c, metav1.Now())
	missing, err := w.missing(ctx, b.namespace(name))
	if err != nil || len(missing) == 0 {
		return err
	}
	return ensure(ctx, w.Store, missing...)
}

// Bootstrap creates the clusters that every server has, with their initial content. It does
// not change existing objects.
func (w *Workspaces) Bootstrap(ctx context.Context) error {
	if err := fence(ctx, w.Store, cluster.Admin); err != nil {
		return err
	}
	if err := w.bootstrapRoot(ctx); err != nil {
		return err
	}
	return w.bootstrapTypes(ctx)
}

func (w *Workspaces) bootstrapRoot(ctx context.Context) error {
	if _, ok := w.Tree.Cluster(cluster.Root); ok {
		return nil // it is written last
	}
	b := w.birth(cluster.Root, metav1.Now())
	l, err := values.Unstructured(w.rootCluster(b), core.GroupVersion.WithKind("LogicalCluster"))
	if err != nil {
		return err
	}
	writes := append(b.namespace(metav1.NamespaceDefault), b.namespace(metav1.NamespaceSystem)...)
	writes = append(writes, b.rootAccess()...)
	return ensure(ctx, w.Store, append(writes, b.write(tree.LogicalClusters(), l))...)
}

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
	stored, err := values.Unstructured(l, core.GroupVersion.WithKind("LogicalCluster"))
	if err != nil {
		return err
	}
	writes := slices.Concat(b.namespace(metav1.NamespaceDefault), []store.Write{b.write(tree.LogicalClusters(), stored)}, b.first())
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
		if stored, err = values.Unstructured(l, core.GroupVersion.WithKind("LogicalCluster")); err != nil {
			return err
		}
		writes = append(slices.Clone(writes), store.Write{Resource: tree.LogicalClusters(), Cluster: c, Object: stored, Expect: rev})
	}
	if _, err = w.Store.Commit(ctx, writes); storage.IsExist(err) || storage.IsConflict(err) {
		return nil // a loop was faster
	}
	return err
}

func (w *Workspaces) rootCluster(b birth) *core.LogicalCluster {
	l := &core.LogicalCluster{ObjectMeta: b.meta("", core.LogicalClusterName)}
	l.Labels = map[string]string{core.PhaseLabel: string(core.PhaseReady)}
	l.Annotations = map[string]string{
		core.PathAnnotation: string(cluster.Root), core.ShardAnnotation: string(w.Shard), tenancyapi.TypeAnnotation: "root:root",
		tenancyapi.OwnerAnnotation: `{"username":"` + bootstrapper + `"}`,
	}
	l.Status.Phase = core.PhaseReady
	l.Status.URL = w.url(string(cluster.Root))
	l.Status.Conditions.Set(conditions.Condition{Type: core.WorkspaceInitialized, Status: "True", LastTransitionTime: b.now})
	return l
}

// rootAccess returns the writes of bindings that let all authenticated users enter the root
// workspace and read its Workspaces.
func (b birth) rootAccess() []store.Write {
	var writes []store.Write
	for name, role := range map[string]string{
		"system:kcp:tenancy:authenticated:access": "system:kcp:workspace:access",
		"system:kcp:authenticated:tenancy-reader": "system:kcp:tenancy:reader",
	} {
		writes = append(writes, b.write(native(rbacv1.GroupName, "clusterrolebindings"), &rbacv1.ClusterRoleBinding{
			ObjectMeta: b.meta("", name),
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: user.AllAuthenticated}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		}))
	}
	return writes
}
