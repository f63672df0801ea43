package tenancy

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
)

// retries limits the attempts after concurrent changes.
const retries = 10

// Moved reports whether an error means that an object has changed since it was read.
func Moved(err error) bool {
	return errors.Is(err, store.ErrChanged) || storage.IsConflict(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err)
}

// A Pair is a LogicalCluster and its Workspace, as they were read.
type Pair struct {
	// Cluster has the LogicalCluster Root. It is empty if the Workspace has no cluster of its own.
	Cluster      cluster.Name
	Root         *core.LogicalCluster
	RootRevision int64
	// Parent has the Workspace. It is empty if the cluster has none, or if the Workspace was deleted.
	Parent            cluster.Name
	Workspace         *tenancyapi.Workspace
	WorkspaceRevision int64
}

// ReadPair reads the LogicalCluster of c, and its Workspace if that exists. It returns nil if there is no
// such cluster.
func (w *Workspaces) ReadPair(ctx context.Context, c cluster.Name) (*Pair, error) {
	l, rev, err := read[core.LogicalCluster](ctx, w.Store, clusterKey(c))
	if err != nil || l == nil {
		return nil, err
	}
	p := &Pair{Cluster: c, Root: l, RootRevision: rev}
	if o := l.Spec.Owner; o != nil {
		key := keys.Key{Resource: w.Resource, Cluster: cluster.Name(o.Cluster), Name: o.Name}
		ws, rev, err := read[tenancyapi.Workspace](ctx, w.Store, key)
		if err != nil {
			return nil, err
		}
		if ws != nil && ws.UID == o.UID {
			p.Parent, p.Workspace, p.WorkspaceRevision = key.Cluster, ws, rev
		}
	}
	return p, nil
}

// ReadWorkspace reads a Workspace without its LogicalCluster, see [Workspaces.ReadCluster]. It returns
// nil if there is no such Workspace.
func (w *Workspaces) ReadWorkspace(ctx context.Context, parent cluster.Name, name string) (*Pair, error) {
	ws, rev, err := read[tenancyapi.Workspace](ctx, w.Store, keys.Key{Resource: w.Resource, Cluster: parent, Name: name})
	if err != nil || ws == nil {
		return nil, err
	}
	return &Pair{Parent: parent, Workspace: ws, WorkspaceRevision: rev}, nil
}

// ReadCluster reads the LogicalCluster of the Workspace of p. It changes nothing if the Workspace has
// none, or one that does not belong to it.
func (w *Workspaces) ReadCluster(ctx context.Context, p *Pair) error {
	c := cluster.Name(p.Workspace.Spec.Cluster)
	if c == "" || c == cluster.Root || c.System() {
		return nil
	}
	l, rev, err := read[core.LogicalCluster](ctx, w.Store, clusterKey(c))
	if err != nil || l == nil {
		return err
	}
	if o := l.Spec.Owner; o != nil && o.Cluster == string(p.Parent) && o.Name == p.Workspace.Name && o.UID == p.Workspace.UID {
		p.Cluster, p.Root, p.RootRevision = c, l, rev
	}
	return nil
}

// SavePair writes the LogicalCluster and the Workspace of a pair in one transaction with fences.
func (w *Workspaces) SavePair(ctx context.Context, p *Pair, fences ...store.Fence) (int64, error) {
	root, err := ClusterWrite(p.Cluster, p.Root, p.RootRevision)
	if err != nil {
		return 0, err
	}
	writes := []store.Write{root}
	if p.Workspace != nil {
		ws, err := w.WorkspaceWrite(p.Parent, p.Workspace, p.WorkspaceRevision)
		if err != nil {
			return 0, err
		}
		writes = append(writes, ws)
	}
	rev, err := w.Store.Commit(ctx, writes, fences...)
	if err == nil {
		p.RootRevision, p.WorkspaceRevision = rev, rev
	}
	return rev, err
}
