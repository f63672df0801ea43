package tenancy

import (
	"context"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/store"
)

// UpdateURL updates the URLs of cluster c and its Workspace to the current URL of the
// server. It writes nothing if they are current.
func (w *Workspaces) UpdateURL(ctx context.Context, c cluster.Name) error {
	p, err := w.ReadPair(ctx, c)
	if err != nil || p == nil {
		return err
	}
	var writes []store.Write
	if url := w.url(string(c)); p.Root.Status.URL != url {
		p.Root.Status.URL = url
		write, err := ClusterWrite(c, p.Root, p.RootRevision)
		if err != nil {
			return err
		}
		writes = append(writes, write)
	}
	if url := w.url(string(w.Tree.PathOf(c))); p.Workspace != nil && p.Workspace.Spec.URL != url {
		p.Workspace.Spec.URL = url
		write, err := w.WorkspaceWrite(p.Parent, p.Workspace, p.WorkspaceRevision)
		if err != nil {
			return err
		}
		writes = append(writes, write)
	}
	if len(writes) == 0 {
		return nil
	}
	_, err = w.Store.Commit(ctx, writes)
	return err
}
