package controllers

import (
	"context"

	"github.com/unforked/kcp/internal/bind"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/feed"
	"github.com/unforked/kcp/internal/serve"
)

// CachedResources keeps the status of ClusterCachedResources up to date. They change with their
// secret, and with the definition or binding that their workspace has the resource from.
func CachedResources(d Deps) control.Loop {
	inbox := newInbox(func() []control.Key { return loopKeys(d.APIs.Cached.Keys()) })
	d.Store.Feed().Follow(&cachedCauses{inbox, d.APIs})
	return control.Loop{
		Name: "clustercachedresources",
		On:   d.on(inbox.subscribe),
		Do: func(ctx context.Context, k control.Key) error {
			return untilChange(d.APIs.ReconcileCached(ctx, k.Cluster, k.Name))
		},
	}
}

// cachedCauses finds the ClusterCachedResources that a change may concern.
type cachedCauses struct {
	*inbox
	apis *bind.APIs
}

// Apply implements [feed.Follower].
func (f *cachedCauses) Apply(e feed.Event) {
	switch e.Key.Resource {
	case f.apis.Kinds.Cached:
		f.put(keyOf(e.Key))
	case secrets:
		f.in(e.Key.Cluster, func(r *bind.Cached) bool {
			return r.Secret.Namespace == e.Key.Namespace && r.Secret.Name == e.Key.Name
		})
	case serve.CustomResourceDefinitions():
		f.in(e.Key.Cluster, func(r *bind.Cached) bool { return serve.DefinitionName(r.GroupResource) == e.Key.Name })
	case bind.BindingResource():
		f.in(e.Key.Cluster, func(*bind.Cached) bool { return true })
	}
}

// in wakes the loop for some ClusterCachedResources of a cluster.
func (f *cachedCauses) in(c cluster.Name, some func(*bind.Cached) bool) {
	for _, r := range f.apis.Cached.List(c, "") {
		if some(r) {
			f.put(control.Key{Cluster: c, Name: r.Name})
		}
	}
}
