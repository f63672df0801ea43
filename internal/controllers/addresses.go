package controllers

import (
	"context"

	"github.com/unforked/kcp/internal/control"
)

// Addresses updates the URLs of workspaces after the URL of the server changed.
func Addresses(d Deps) control.Loop {
	tree := d.Workspaces.Tree
	return control.Loop{
		Name: "workspace-addresses",
		On:   d.on(d.clusters),
		Do: func(ctx context.Context, k control.Key) error {
			if c, ok := tree.Cluster(k.Cluster); !ok || !c.StaleURL {
				return nil
			}
			return d.Workspaces.UpdateURL(ctx, k.Cluster)
		},
	}
}
