package controllers

import (
	"context"
	"time"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
)

// patience is how long the request that makes a workspace has to bring it to its
// end before the loop does.
const patience = 2 * time.Second

// Completion takes workspaces as far in their life as they go by themselves: those whose
// making was cut short, as by a crash of the process that made them, are completed, and
// those whose initializers have finished become ready. What a cluster says of itself,
// its Workspace says too.
func Completion(d Deps) control.Loop {
	tree := d.Workspaces.Tree
	return control.Loop{
		Name: "workspace-completion",
		On: []control.Source{{
			Ready: d.Store.Spine().Ready(),
			Subscribe: func(wake func(control.Key)) (unsubscribe func()) {
				clusters := tree.OnCluster(func(c cluster.Name) { wake(control.Key{Cluster: c}) })
				workspaces := tree.OnWorkspace(func(c cluster.Name, name string) { wake(control.Key{Cluster: c, Name: name}) })
				return func() { clusters(); workspaces() }
			},
		}},
		Workers: 1,
		Do: func(ctx context.Context, k control.Key) error {
			c := k.Cluster
			if k.Name != "" { // a Workspace
				child, _ := tree.Child(k.Cluster, k.Name)
				c = child.Cluster
			}
			if !tree.Behind(c) {
				return nil
			}
			if root, _ := tree.Cluster(c); root.Phase == core.PhaseScheduling {
				if early := patience - time.Since(root.Begun); early > 0 {
					return control.After(early)
				}
			}
			return d.Workspaces.Complete(ctx, c)
		},
	}
}
