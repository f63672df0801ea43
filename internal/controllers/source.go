package controllers

import (
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/trigger"
)

var (
	namespaces      = keys.Resource{Root: keys.Native, Resource: "namespaces"}
	serviceAccounts = keys.Resource{Root: keys.Native, Resource: "serviceaccounts"}
	secrets         = keys.Resource{Root: keys.Native, Resource: "secrets"}
)

// on returns the sources of a loop, see [trigger.On].
func (d Deps) on(subscriptions ...func(wake func(control.Key)) (unsubscribe func())) []control.Source {
	return trigger.On(d.Store.Feed(), subscriptions...)
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
