package controllers

import (
	"context"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
)

// StorageRenewal rewrites stored objects after an upgrade, in the new version of their kind,
// and after a change of encryption keys, with the new key.
func StorageRenewal(d Deps) control.Loop {
	return control.Loop{
		Name: "storage-renewal",
		On:   d.on(trigger.Once),
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
