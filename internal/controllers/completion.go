package controllers

import (
	"context"
	"time"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/control"
)

// createTimeout is the time that a create request has to complete a workspace before the
// loop does so.
const createTimeout = 2 * time.Second

// Completion completes workspaces whose creation was interrupted, for example by a crash. It
// makes workspaces Ready when their initializers have finished, and copies the status of
// clusters to their Workspaces.
func Completion(d Deps) control.Loop {
	tree := d.Workspaces.Tree
	return control.Loop{
		Name:    "workspace-completion",
		On:      d.on(d.clusters, d.workspaces),
		Workers: 1,
		Do: func(ctx context.Context, k control.Key) error {
			c := k.Cluster
			if k.Name != "" { // a Workspace
				child, _ := tree.Child(k.Cluster, k.Name)
				c = child.Cluster
			}
			if !tree.Incomplete(c) {
				return nil
			}
			if root, _ := tree.Cluster(c); root.Phase == core.PhaseScheduling {
				if early := createTimeout - time.Since(root.Created); early > 0 {
					return control.After(early)
				}
			}
			return d.Workspaces.Complete(ctx, c)
		},
	}
}
