package tenancy

import (
	"context"
	"errors"
	"fmt"

	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/values"
)

// RollOut adds missing labels of a type to all Workspaces of the type, if its life cycle is
// Maintain. It does not change or remove labels of a Workspace, because clients may select
// by them.
func (w *Workspaces) RollOut(ctx context.Context, c cluster.Name, name string) error {
	of, ok := w.Types.Get(c, name)
	if !ok || !of.maintains() {
		return nil
	}
	var errs []error
	for _, n := range w.Tree.ofType(w.Types.Name(of)) {
		errs = append(errs, w.rollOut(ctx, n, of.Spec.AdditionalWorkspaceLabels))
	}
	return errors.Join(errs...)
}

// maintains reports whether the type adds labels to existing workspaces.
func (t *typeContent) maintains() bool {
	cycle := t.Spec.DefaultAPIBindingLifecycle
	return cycle != nil && *cycle == tenancyapi.Maintain && len(t.Spec.AdditionalWorkspaceLabels) > 0
}

// ofType returns the clusters of a type that have a Workspace and are not being deleted.
func (t *Tree) ofType(name string) []cluster.Name {
	var all []cluster.Name
	for _, c := range t.clusters.ClustersBy(name) {
		if root, ok := t.Cluster(c); ok && root.Parent != "" && !root.Ending {
			all = append(all, c)
		}
	}
	return all
}

// rollOut adds missing labels to the Workspace of cluster c.
func (w *Workspaces) rollOut(ctx context.Context, c cluster.Name, labels map[string]string) error {
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
		u, err := values.Unstructured(ws, tenancyapi.GroupVersion.WithKind("Workspace"))
		if err != nil {
			return err
		}
		if _, err = w.Store.Commit(ctx, []store.Write{{Resource: w.Resource, Cluster: root.Parent, Object: u, Expect: rev}}); !moved(err) {
			return err
		}
	}
	return fmt.Errorf("label workspace of cluster %s: too many concurrent changes", c)
}
