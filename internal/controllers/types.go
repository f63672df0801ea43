package controllers

import (
	"context"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
)

// WorkspaceTypes has types say where the server is, and gives to existing workspaces
// what types whose life cycle is to maintain them give to new ones.
func WorkspaceTypes(d Deps) control.Loop {
	types := d.Workspaces.Types
	return control.Loop{
		Name: "workspace-types",
		On: []control.Source{{
			Ready: d.Store.Spine().Ready(),
			Subscribe: func(wake func(control.Key)) (unsubscribe func()) {
				return types.OnType(func(c cluster.Name, name string) { wake(control.Key{Cluster: c, Name: name}) })
			},
		}},
		Workers: 1,
		Do: func(ctx context.Context, k control.Key) error {
			if types.Moved(k.Cluster, k.Name) {
				if err := d.Workspaces.ReaddressType(ctx, k.Cluster, k.Name); err != nil {
					return err
				}
			}
			return d.Workspaces.RollOut(ctx, k.Cluster, k.Name)
		},
	}
}
