package controllers

import (
	"context"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/resources/define"
	"github.com/unforked/kcp/internal/sharing/bind"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
)

// Bindings keeps the status of APIBindings up to date. A binding depends on its export, on the
// schemas of the export, and on the names that others have in its cluster.
func Bindings(d Deps) control.Loop {
	inbox := trigger.New(func() []control.Key {
		return trigger.Keys(d.APIs.Bindings.Keys(func(b *bind.Binding) bool { return !b.Deleting }))
	})
	d.Store.Feed().Follow(&bindingCauses{inbox, d.APIs})
	return control.Loop{
		Name: "apibindings",
		On:   d.on(inbox.Subscribe),
		Do: func(ctx context.Context, k control.Key) error {
			return trigger.UntilChange(d.APIs.Reconcile(ctx, k.Cluster, k.Name))
		},
	}
}

// bindingCauses finds the bindings that a change may concern.
type bindingCauses struct {
	*trigger.Inbox
	apis *bind.APIs
}

// Apply implements [feed.Follower].
func (f *bindingCauses) Apply(e feed.Event) {
	c, name := e.Key.Cluster, e.Key.Name
	switch e.Key.Resource {
	case bind.BindingResource():
		if !e.Deleted() {
			f.Put(trigger.Key(e.Key))
			return
		}
		f.unsettled(e.Key)
	case define.Resource():
		if e.Deleted() {
			f.unsettled(e.Key)
		}
	case exports.Resource():
		export := exports.Name{Cluster: c, Name: name}
		f.to(export)
		for _, k := range trigger.Keys(f.apis.Waiting(export)) {
			f.Put(k)
		}
	case exports.RolloutResource():
		for _, export := range f.apis.Exports.List(c, "") {
			f.to(exports.Name{Cluster: c, Name: export.Name})
		}
	case exports.SchemaResource():
		for export := range f.apis.Exports.With(c, name) {
			f.to(export)
		}
	}
}

// unsettled wakes the loop for the bindings of a cluster without resources: the names that they
// need may be free now.
func (f *bindingCauses) unsettled(k keys.Key) {
	for name, b := range f.apis.Bindings.Of(k.Cluster) {
		if !b.Complete {
			f.Put(control.Key{Cluster: k.Cluster, Name: name})
		}
	}
}

// to wakes the loop for the bindings to an export.
func (f *bindingCauses) to(e exports.Name) {
	for _, k := range trigger.Keys(f.apis.Bindings.To(e)) {
		f.Put(k)
	}
}
