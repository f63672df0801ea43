// Package controllers lists the reconcile loops of the server, in [All]. Each is a function that
// returns a [control.Loop], one per file. Loops that have more to hide are in packages of their own.
package controllers

import (
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/controllers/deletion"
	"github.com/unforked/kcp/internal/sharing/usage"
)

// All returns all loops but those of [Everywhere]; their order does not matter. Call it before
// the change feed of the store starts, because loops add followers to the feed.
func All(d Deps) []control.Loop {
	instances := deletion.Instances{Store: d.Store, Kinds: d.Kinds, Client: d.Client, Last: d.DeletedLast}
	return []control.Loop{
		Scheduling(d),
		Completion(d),
		Addresses(d),
		WorkspaceTypes(d),
		Inactivity(d),
		Mounts(d),
		deletion.Workspaces(d.Remover, d.Client),
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
