// Package controllers holds every reconcile loop of the server, one per file, each
// a constructor that returns a control.Loop. All lists them.
package controllers

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/serve"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/tenancy"
)

// Deps is what loops work with. All fields are set.
type Deps struct {
	Store      *store.Store
	Workspaces *tenancy.Workspaces
	Tokens     *auth.ServiceAccounts
	Policy     *auth.Bootstrap
	// Namespaces has when each namespace began to be deleted, nil if it did not.
	Namespaces *store.Table[*metav1.Time]
	// ClusterRoles have their UID and labels, and what they grant.
	ClusterRoles *store.Table[*rbacv1.ClusterRole]
	Kinds        *serve.Kinds
	// Definitions are those of the custom resources of all clusters.
	Definitions *serve.Definitions
	// Client returns the configuration of clients in one cluster, or in
	// [cluster.All], that may do anything there. Its requests stay in the process.
	Client func(cluster.Name) *rest.Config
}

// All returns every loop, in no order that matters. It is called before the spine
// of the store starts, so that loops can add tables to it; they run after that.
func All(d Deps) []control.Loop {
	return []control.Loop{
		Completion(d),
		Addresses(d),
		WorkspaceTypes(d),
		Inactivity(d),
		Mounts(d),
		Deletion(d),
		Garbage(d),
		Namespaces(d),
		NamespaceDeletion(d),
		ServiceAccountTokens(d),
		ClusterRoleAggregation(d),
		DefinitionNames(d),
		DefinitionDeletion(d),
		StorageRenewal(d),
	}
}
