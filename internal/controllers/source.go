package controllers

import (
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/keys"
)

// on returns the sources of a loop, which the subscriptions wake. The loop starts when the
// change feed of the store has been read once, so that an object which it does not find does
// not exist. Every loop of the server has its sources from here.
func (d Deps) on(subscriptions ...func(wake func(control.Key)) (unsubscribe func())) []control.Source {
	sources := make([]control.Source, len(subscriptions))
	for i, subscribe := range subscriptions {
		sources[i] = control.Source{Ready: d.Store.Feed().Ready(), Subscribe: subscribe}
	}
	return sources
}

// clusters wakes a loop with the key of each logical cluster that changes.
func (d Deps) clusters(wake func(control.Key)) (unsubscribe func()) {
	return d.Workspaces.Tree.OnCluster(func(c cluster.Name) { wake(control.Key{Cluster: c}) })
}

// workspaces wakes a loop with the key of each Workspace that changes.
func (d Deps) workspaces(wake func(control.Key)) (unsubscribe func()) {
	return d.Workspaces.Tree.OnWorkspace(func(c cluster.Name, name string) { wake(control.Key{Cluster: c, Name: name}) })
}

// types wakes a loop with the key of each WorkspaceType that changes.
func (d Deps) types(wake func(control.Key)) (unsubscribe func()) {
	return d.Workspaces.Types.OnType(func(c cluster.Name, name string) { wake(control.Key{Cluster: c, Name: name}) })
}

// clusterRoles wakes a loop with the key of each logical cluster whose cluster roles change.
func (d Deps) clusterRoles(wake func(control.Key)) (unsubscribe func()) {
	unsubscribe = d.ClusterRoles.Subscribe(func(k keys.Key) { wake(control.Key{Cluster: k.Cluster}) })
	for _, k := range d.ClusterRoles.Keys() {
		wake(control.Key{Cluster: k.Cluster})
	}
	return unsubscribe
}

// once wakes a loop when it starts, with a key of the whole server.
func once(wake func(control.Key)) (unsubscribe func()) {
	wake(control.Key{Cluster: cluster.Admin, Name: "all"})
	return nil
}
