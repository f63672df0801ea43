package controllers

import (
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/auth/authn"
	"github.com/unforked/kcp/internal/auth/authz"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/controllers/garbage"
	"github.com/unforked/kcp/internal/quota/limits"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/define"
	"github.com/unforked/kcp/internal/sharing/bind"
	"github.com/unforked/kcp/internal/sharing/endpoints"
	"github.com/unforked/kcp/internal/sharing/evolve"
	"github.com/unforked/kcp/internal/sharing/usage"
	"github.com/unforked/kcp/internal/sharing/virtual"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/tenancy"
	"github.com/unforked/kcp/internal/tenancy/removal"
)

// Deps are the dependencies of loops. All fields but DeletedLast are required.
type Deps struct {
	Store      *store.Store
	Workspaces *tenancy.Workspaces
	Remover    *removal.Remover
	Tokens     *authn.ServiceAccounts
	Policy     *authz.Bootstrap
	// Namespaces has the deletion timestamp of each namespace, nil if it has none.
	Namespaces *feed.Table[store.Namespace]
	// Quotas are the ResourceQuotas of all clusters.
	Quotas *limits.Quotas
	// ClusterRoles have only their UID, labels and rules.
	ClusterRoles *feed.Table[*rbacv1.ClusterRole]
	// Garbage collects the garbage of all clusters.
	Garbage *garbage.Collector
	Kinds   *catalog.Kinds
	// Definitions are the CustomResourceDefinitions of all clusters.
	Definitions *define.Definitions
	// APIs are the exports and bindings of all clusters.
	APIs *bind.APIs
	// Endpoints are the endpoint slices and Partitions of all clusters.
	Endpoints *endpoints.Endpoints
	// Virtual is where the objects of virtual resources are.
	Virtual *virtual.Storage
	// Usage measures what the consumers of exports store.
	Usage *usage.Meter
	// Checker checks schemas before they roll out.
	Checker *evolve.Checker
	// DeletedLast are the resources whose objects are deleted after all others of a namespace or
	// a binding.
	DeletedLast []schema.GroupResource
	// Issue returns the certificate that a request in PEM asks for, for users of one cluster.
	Issue func(c cluster.Name, request []byte, life time.Duration) ([]byte, error)
	// Client returns the configuration of clients with all rights in one cluster, or in
	// [cluster.All]. Their requests stay in the process.
	Client func(cluster.Name) *rest.Config
}

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
