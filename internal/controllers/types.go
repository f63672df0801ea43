package controllers

import (
	"context"

	"github.com/unforked/kcp/internal/control"
)

// WorkspaceTypes updates the URLs of types after the URL of the server changed. It adds the
// labels of types with the life cycle Maintain to existing workspaces.
func WorkspaceTypes(d Deps) control.Loop {
	types := d.Workspaces.Types
	return control.Loop{
		Name:    "workspace-types",
		On:      d.on(d.types),
		Workers: 1,
		Do: func(ctx context.Context, k control.Key) error {
			if types.StaleURL(k.Cluster, k.Name) {
				if err := d.Workspaces.UpdateTypeURLs(ctx, k.Cluster, k.Name); err != nil {
					return err
				}
			}
			return d.Workspaces.RollOutLabels(ctx, k.Cluster, k.Name)
		},
	}
}
