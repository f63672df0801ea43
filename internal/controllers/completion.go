package controllers

import (
	"context"
	"time"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
)

// patience is how long the request that makes a workspace has to bring it to its
// end before the loop does.
const patience = 2 * time.Second

// Completion brings to their end workspaces whose making was cut short, as by a
// crash of the process that made them.
func Completion(d Deps) control.Loop {
	tree := d.Workspaces.Tree
	return control.Loop{
		Name: "workspace-completion",
		On: []control.Source{{
			Ready: d.Store.Spine().Ready(),
			Subscribe: func(wake func(control.Key)) (unsubscribe func()) {
				return tree.OnCluster(func(c cluster.Name) { wake(control.Key{Cluster: c}) })
			},
		}},
		Workers: 1,
		Do: func(ctx context.Context, k control.Key) error {
			c, ok := tree.Cluster(k.Cluster)
			if !ok || c.Whole {
				return nil
			}
			if early := patience - time.Since(c.Begun); early > 0 {
				return control.After(early)
			}
			return d.Workspaces.Complete(ctx, k.Cluster)
		},
	}
}
