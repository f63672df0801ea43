package controllers

import (
	"context"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/sharing/evolve"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/feed"
)

// Rollouts takes the steps of APIExportRollouts.
func Rollouts(d Deps) control.Loop {
	inbox := trigger.New(func() []control.Key { return trigger.Keys(d.APIs.Exports.Rollouts.Keys()) })
	d.Store.Feed().Follow(&rolloutCauses{inbox, d.APIs.Exports})
	rollouts := evolve.NewRollouts(d.Checker)
	return control.Loop{
		Name: "apiexportrollouts",
		On:   d.on(inbox.Subscribe),
		Do: func(ctx context.Context, k control.Key) error {
			return trigger.UntilChange(rollouts.Reconcile(ctx, k.Cluster, k.Name))
		},
	}
}

// rolloutCauses finds the rollouts that a change may concern.
type rolloutCauses struct {
	*trigger.Inbox
	exports *exports.Exports
}

// Apply implements [feed.Follower].
func (f *rolloutCauses) Apply(e feed.Event) {
	switch e.Key.Resource {
	case exports.RolloutResource(), exports.Resource(), exports.SchemaResource():
		for _, r := range f.exports.Rollouts.List(e.Key.Cluster, "") {
			if !r.Ended || e.Key.Resource == exports.RolloutResource() && r.Name == e.Key.Name {
				f.Put(control.Key{Cluster: e.Key.Cluster, Name: r.Name})
			}
		}
	}
}
