package controllers

import (
	"context"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
)

// StorageRenewal has everything stored as this program stores it: after an upgrade in
// the new version of its kind, after a change of keys encrypted with the new one.
func StorageRenewal(d Deps) control.Loop {
	return control.Loop{
		Name: "storage-renewal",
		On: []control.Source{{
			Ready: d.Store.Spine().Ready(),
			Subscribe: func(wake func(control.Key)) (unsubscribe func()) {
				wake(control.Key{Cluster: cluster.Admin, Name: "all"})
				return nil
			},
		}},
		Do: func(ctx context.Context, _ control.Key) error {
			again, err := d.Store.Renew(ctx)
			if err == nil && again > 0 {
				return control.After(again)
			}
			return err
		},
		Workers: 1,
	}
}
