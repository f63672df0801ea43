package controllers

import (
	"context"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/usage"
)

// Usage measures what the consumers of exports store, while this process runs the loops, and
// writes the records of it.
func Usage(d Deps) control.Loop {
	return control.Loop{
		Name: "usage",
		On: d.on(func(wake func(control.Key)) (unsubscribe func()) {
			once(wake)
			return d.Usage.Stop
		}),
		Do: func(ctx context.Context, _ control.Key) error {
			if err := d.Usage.Write(ctx); err != nil {
				return err
			}
			return control.After(d.Usage.Every())
		},
		Workers: 1,
	}
}

// UsedVersions writes which versions of exported resources were requested in this process.
func UsedVersions(m *usage.Meter) control.Loop {
	return control.Loop{
		Name: "used-versions",
		On:   []control.Source{{Subscribe: once}},
		Do: func(ctx context.Context, _ control.Key) error {
			if err := m.WriteUses(ctx); err != nil {
				return err
			}
			return control.After(m.Every())
		},
		Workers: 1,
	}
}
