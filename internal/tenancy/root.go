package tenancy

import (
	"context"
	"errors"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/storage"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/store"
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
	lc, err := ClusterWrite(cluster.Root, w.rootCluster(b), 0)
	if err != nil {
		return err
	}
	writes := append(b.namespace(metav1.NamespaceDefault), b.namespace(metav1.NamespaceSystem)...)
	writes = append(writes, b.rootAccess()...)
	return ensure(ctx, w.Store, append(writes, lc)...)
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
