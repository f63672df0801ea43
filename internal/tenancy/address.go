package tenancy

import (
	"context"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
)

// UpdateURL updates the URLs of cluster c and its Workspace to the current URL of the
// server. It writes nothing if they are current.
func (w *Workspaces) UpdateURL(ctx context.Context, c cluster.Name) error {
	l, lrev, err := read[core.LogicalCluster](ctx, w.Store, clusterKey(c))
	if err != nil || l == nil {
		return err
	}
	var writes []store.Write
	if url := w.url(string(c)); l.Status.URL != url {
		l.Status.URL = url
		write, err := ClusterWrite(c, l, lrev)
		if err != nil {
			return err
		}
		writes = append(writes, write)
	}
	if owner := l.Spec.Owner; owner != nil {
		parent := cluster.Name(owner.Cluster)
		ws, wrev, err := read[tenancyapi.Workspace](ctx, w.Store, keys.Key{Resource: w.Resource, Cluster: parent, Name: owner.Name})
		if err != nil {
			return err
		}
		if url := w.url(string(w.Tree.PathOf(c))); ws != nil && ws.UID == owner.UID && ws.Spec.URL != url {
			ws.Spec.URL = url
			write, err := w.WorkspaceWrite(parent, ws, wrev)
			if err != nil {
				return err
			}
			writes = append(writes, write)
		}
	}
	if len(writes) == 0 {
		return nil
	}
	_, err = w.Store.Commit(ctx, writes)
	return err
}
