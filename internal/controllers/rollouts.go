package controllers

import (
	"context"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/evolve"
	"github.com/unforked/kcp/internal/exports"
	"github.com/unforked/kcp/internal/feed"
)

// Rollouts takes the steps of APIExportRollouts.
func Rollouts(d Deps) control.Loop {
	inbox := newInbox(func() []control.Key { return loopKeys(d.APIs.Exports.Rollouts.Keys()) })
	d.Store.Feed().Follow(&rolloutCauses{inbox, d.APIs.Exports})
	rollouts := evolve.NewRollouts(d.Checker)
	return control.Loop{
		Name: "apiexportrollouts",
		On:   d.on(inbox.subscribe),
		Do: func(ctx context.Context, k control.Key) error {
			return untilChange(rollouts.Reconcile(ctx, k.Cluster, k.Name))
		},
	}
}

// rolloutCauses finds the rollouts that a change may concern.
type rolloutCauses struct {
	*inbox
	exports *exports.Exports
}

// Apply implements [feed.Follower].
func (f *rolloutCauses) Apply(e feed.Event) {
	switch e.Key.Resource {
	case exports.RolloutResource(), exports.Resource(), exports.SchemaResource():
		for _, r := range f.exports.Rollouts.List(e.Key.Cluster, "") {
			if !r.Ended || e.Key.Resource == exports.RolloutResource() && r.Name == e.Key.Name {
				f.put(control.Key{Cluster: e.Key.Cluster, Name: r.Name})
			}
		}
	}
}
