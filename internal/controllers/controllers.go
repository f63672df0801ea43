// Package controllers lists the reconcile loops of the server, in [All]. It has those whose work
// other packages do, one per file: it says what wakes them. Each is a function that returns a
// [control.Loop].
package controllers

import (
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/authn"
	"github.com/unforked/kcp/internal/authz"
	"github.com/unforked/kcp/internal/bind"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/deletion"
	"github.com/unforked/kcp/internal/endpoints"
	"github.com/unforked/kcp/internal/evolve"
	"github.com/unforked/kcp/internal/feed"
	"github.com/unforked/kcp/internal/garbage"
	"github.com/unforked/kcp/internal/serve"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/tenancy"
	"github.com/unforked/kcp/internal/usage"
	"github.com/unforked/kcp/internal/virtual"
)

// Deps are the dependencies of loops. All fields but DeletedLast are required.
type Deps struct {
	Store      *store.Store
	Workspaces *tenancy.Workspaces
	Tokens     *authn.ServiceAccounts
	Policy     *authz.Bootstrap
	// Namespaces has the deletion timestamp of each namespace, nil if it has none.
	Namespaces *feed.Table[store.Namespace]
	// Quotas are the ResourceQuotas of all clusters.
	Quotas *store.Quotas
	// ClusterRoles have only their UID, labels and rules.
	ClusterRoles *feed.Table[*rbacv1.ClusterRole]
	// Garbage collects the garbage of all clusters.
	Garbage *garbage.Collector
	Kinds   *serve.Kinds
	// Definitions are the CustomResourceDefinitions of all clusters.
	Definitions *serve.Definitions
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
	// DeletedLast are the resources whose objects are deleted after all others of a namespace.
	DeletedLast []schema.GroupResource
	// Issue returns the certificate that a request in PEM asks for, for users of one cluster.
	Issue func(c cluster.Name, request []byte, life time.Duration) ([]byte, error)
	// Client returns the configuration of clients with all rights in one cluster, or in
	// [cluster.All]. Their requests stay in the process.
	Client func(cluster.Name) *rest.Config
}

// All returns all loops but those of [Everywhere]; their order does not matter. Call it before
// the change feed of the store starts, because loops add followers to the feed.
func All(d Deps) []control.Loop {
	instances := deletion.Instances{Store: d.Store, Kinds: d.Kinds, Client: d.Client}
	return []control.Loop{
		Scheduling(d),
		Completion(d),
		Addresses(d),
		WorkspaceTypes(d),
		Inactivity(d),
		Mounts(d),
		deletion.Workspaces(d.Workspaces, d.Client),
		d.Garbage.Loop(),
		Namespaces(d),
		deletion.Namespaces(d.Store, d.Namespaces, d.Client, d.DeletedLast),
		ServiceAccountTokens(d),
		ClusterRoleAggregation(d),
		Quotas(d),
		CertificateRequests(d),
		PolicyTypes(d),
		DefinitionNames(d),
		deletion.Definitions(d.Definitions, instances),
		StorageRenewal(d),
		Exports(d),
		Bindings(d),
		Rollouts(d),
		deletion.Bindings(d.APIs, instances),
		EndpointSlices(d),
		CachedResources(d),
		CachedCounts(d),
		CachedEndpointSlices(d),
		PartitionSets(d),
		BoundDefinitions(d),
		DefaultBindings(d),
		Usage(d),
	}
}

// Everywhere returns the loops that every process runs, for state that only that process has.
func Everywhere(m *usage.Meter, r *usage.Requests) []control.Loop {
	return []control.Loop{UsedVersions(m), Requests(r, m.Every())}
}
