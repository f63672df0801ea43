package controllers

import (
	"context"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/define"
	"github.com/unforked/kcp/internal/sharing/bind"
	"github.com/unforked/kcp/internal/sharing/virtual"
	"github.com/unforked/kcp/internal/storage/feed"
)

// CachedResources keeps the status of ClusterCachedResources up to date. They change with their
// secret, and with the definition or binding that their workspace has the resource from.
func CachedResources(d Deps) control.Loop {
	inbox := trigger.New(func() []control.Key { return trigger.Keys(d.Virtual.Cached.Keys()) })
	d.Store.Feed().Follow(&cachedCauses{inbox, d.Virtual})
	return control.Loop{
		Name: "clustercachedresources",
		On:   d.on(inbox.Subscribe),
		Do: func(ctx context.Context, k control.Key) error {
			return trigger.UntilChange(d.Virtual.Reconcile(ctx, k.Cluster, k.Name))
		},
	}
}

// cachedCauses finds the ClusterCachedResources that a change may concern.
type cachedCauses struct {
	*trigger.Inbox
	virtual *virtual.Storage
}

// Apply implements [feed.Follower].
func (f *cachedCauses) Apply(e feed.Event) {
	switch e.Key.Resource {
	case f.virtual.Resource:
		f.Put(trigger.Key(e.Key))
	case secrets:
		f.in(e.Key.Cluster, func(r *virtual.Cached) bool {
			return r.Secret.Namespace == e.Key.Namespace && r.Secret.Name == e.Key.Name
		})
	case define.Resource():
		f.in(e.Key.Cluster, func(r *virtual.Cached) bool { return catalog.DefinitionName(r.GroupResource) == e.Key.Name })
	case bind.BindingResource():
		f.in(e.Key.Cluster, func(*virtual.Cached) bool { return true })
	}
}

// in wakes the loop for some ClusterCachedResources of a cluster.
func (f *cachedCauses) in(c cluster.Name, some func(*virtual.Cached) bool) {
	for _, r := range f.virtual.Cached.List(c, "") {
		if some(r) {
			f.Put(control.Key{Cluster: c, Name: r.Name})
		}
	}
}
