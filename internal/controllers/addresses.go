package controllers

import (
	"context"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
)

// Addresses has workspaces say where they are reached after the server was moved.
func Addresses(d Deps) control.Loop {
	tree := d.Workspaces.Tree
	return control.Loop{
		Name: "workspace-addresses",
		On: []control.Source{{
			Ready: d.Store.Spine().Ready(),
			Subscribe: func(wake func(control.Key)) (unsubscribe func()) {
				return tree.OnCluster(func(c cluster.Name) { wake(control.Key{Cluster: c}) })
			},
		}},
		Do: func(ctx context.Context, k control.Key) error {
			if c, ok := tree.Cluster(k.Cluster); !ok || !c.Moved {
				return nil
			}
			return d.Workspaces.Readdress(ctx, k.Cluster)
		},
	}
}
