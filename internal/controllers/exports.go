package controllers

import (
	"context"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/feed"
)

// Exports checks the identity of APIExports after their secret has changed.
func Exports(d Deps) control.Loop {
	inbox := trigger.New(func() []control.Key { return trigger.Keys(d.APIs.Exports.Keys()) })
	d.Store.Feed().Follow(&exportCauses{inbox, d.APIs.Exports})
	return control.Loop{
		Name: "apiexports",
		On:   d.on(inbox.Subscribe),
		Do: func(ctx context.Context, k control.Key) error {
			return trigger.UntilChange(d.APIs.Exports.Reconcile(ctx, k.Cluster, k.Name))
		},
	}
}

// exportCauses finds the exports that a change concerns.
type exportCauses struct {
	*trigger.Inbox
	exports *exports.Exports
}

// Apply implements [feed.Follower].
func (f *exportCauses) Apply(e feed.Event) {
	switch e.Key.Resource {
	case exports.Resource():
		f.Put(trigger.Key(e.Key))
	case secrets:
		for _, x := range f.exports.List(e.Key.Cluster, "") {
			if x.Secret.Namespace == e.Key.Namespace && x.Secret.Name == e.Key.Name {
				f.Put(control.Key{Cluster: e.Key.Cluster, Name: x.Name})
			}
		}
	}
}
