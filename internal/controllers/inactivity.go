package controllers

import (
	"context"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/control"
)

// Inactivity updates the phase of clusters that operators take offline or online. The
// server refuses requests by the annotation, without waiting for the phase.
func Inactivity(d Deps) control.Loop {
	tree := d.Workspaces.Tree
	return control.Loop{
		Name:    "workspace-inactivity",
		On:      d.on(d.clusters),
		Workers: 1,
		Do: func(ctx context.Context, k control.Key) error {
			if c, ok := tree.Cluster(k.Cluster); !ok || c.Inactive == (c.Phase == core.PhaseInactive) || c.Ending {
				return nil
			}
			return d.Workspaces.UpdateInactive(ctx, k.Cluster)
		},
	}
}
