package controllers

import (
	"context"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
)

// Inactivity has the phase of clusters say whether an operator has taken them offline.
// That they are does not wait for it.
func Inactivity(d Deps) control.Loop {
	tree := d.Workspaces.Tree
	return control.Loop{
		Name: "workspace-inactivity",
		On: []control.Source{{
			Ready: d.Store.Spine().Ready(),
			Subscribe: func(wake func(control.Key)) (unsubscribe func()) {
				return tree.OnCluster(func(c cluster.Name) { wake(control.Key{Cluster: c}) })
			},
		}},
		Workers: 1,
		Do: func(ctx context.Context, k control.Key) error {
			if c, ok := tree.Cluster(k.Cluster); !ok || c.Inactive == (c.Phase == core.PhaseInactive) || c.Ending {
				return nil
			}
			return d.Workspaces.Repose(ctx, k.Cluster)
		},
	}
}
