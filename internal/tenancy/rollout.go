package tenancy

import (
	"context"
	"errors"
	"fmt"

	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
)

// RollOutLabels adds missing labels of a type to all Workspaces of the type, if its life cycle is
// Maintain. It does not change or remove labels of a Workspace, because clients may select
// by them.
func (w *Workspaces) RollOutLabels(ctx context.Context, c cluster.Name, name string) error {
	of, ok := w.Types.Get(c, name)
	if !ok || !of.MaintainsLabels() {
		return nil
	}
	var errs []error
	for _, n := range w.Tree.OfType(w.Types.Name(of)) {
		errs = append(errs, w.addLabels(ctx, n, of.Spec.AdditionalWorkspaceLabels))
	}
	return errors.Join(errs...)
}

// addLabels adds missing labels to the Workspace of cluster c.
func (w *Workspaces) addLabels(ctx context.Context, c cluster.Name, labels map[string]string) error {
	for range retries {
		root, ok := w.Tree.Cluster(c)
		if !ok {
			return nil
		}
		ws, rev, err := read[tenancyapi.Workspace](ctx, w.Store, keys.Key{Resource: w.Resource, Cluster: root.Parent, Name: root.Name})
		if err != nil || ws == nil || ws.Spec.Cluster != string(c) {
			return err
		}
		lacks := false
		for key, value := range labels {
			if _, has := ws.Labels[key]; !has {
				setLabel(&ws.ObjectMeta, key, value)
				lacks = true
			}
		}
		if !lacks {
			return nil
		}
		write, err := w.WorkspaceWrite(root.Parent, ws, rev)
		if err != nil {
			return err
		}
		if _, err = w.Store.Commit(ctx, []store.Write{write}); !Moved(err) {
			return err
		}
	}
	return fmt.Errorf("label workspace of cluster %s: too many concurrent changes", c)
}
