package server

import (
	"context"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/auth/lookup"
	"github.com/unforked/kcp/internal/auth/reach"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/controllers"
	"github.com/unforked/kcp/internal/controllers/garbage"
	"github.com/unforked/kcp/internal/quota"
	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/resources/define"
	"github.com/unforked/kcp/internal/resources/native"
	"github.com/unforked/kcp/internal/sharing/bind"
	"github.com/unforked/kcp/internal/sharing/endpoints"
	"github.com/unforked/kcp/internal/sharing/evolve"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/sharing/usage"
	"github.com/unforked/kcp/internal/sharing/virtual"
	"github.com/unforked/kcp/internal/tenancy"
	"github.com/unforked/kcp/internal/tenancy/offline"
	"github.com/unforked/kcp/internal/tenancy/removal"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// assemble builds the parts that know objects of kcp: workspaces, exports and bindings, and the loops.
// Followers of the change feed are added in this order; some read those before them.
func (s *Server) assemble(ctx context.Context) error {
	identities, err := s.identities(ctx)
	if err != nil {
		return err
	}
	if err := s.assembleTenancy(identities); err != nil {
		return err
	}
	ends := s.assembleSharing(identities)
	s.offline, s.issuers = offline.New(s.tree, s.store), lookup.NewIssuers(s.store, identities[tenancy.Export])
	s.store.OnCreate(s.workspaces.Resource, s.workspaces.Create)
	s.store.OnWrite(s.workspaces.TypeResource, s.workspaces.DeriveType)
	s.store.OnWrite(tree.LogicalClusters(), tenancy.DeriveCluster)
	s.store.OnWrite(s.workspaces.Resource, tenancy.DeriveWorkspace)
	s.lifecycles.Follow(s.store.Feed(), s.tree)
	queries := &reach.Queries{Authorizer: s.authz, RBAC: s.rbac, Workspaces: s.workspaces, APIs: s.apis}
	if err := queries.Install(s.generic.Handler.NonGoRestfulMux); err != nil {
		return err
	}
	s.assembleLoops(ends)
	return nil
}

// identities reads the identities of the built-in exports, or creates them at the first start.
func (s *Server) identities(ctx context.Context) (map[string]string, error) {
	identities := map[string]string{}
	for _, b := range tenancy.BuiltIns() {
		var err error
		if identities[b.Name], err = tenancy.Identity(ctx, s.store, s.ca.Text(), b.Name); err != nil {
			return nil, err
		}
	}
	return identities, nil
}

// assembleTenancy builds the tree of workspaces and what hangs on it.
func (s *Server) assembleTenancy(identities map[string]string) (err error) {
	identity := identities[tenancy.Export]
	if s.given, err = native.NewGiven(identities, s.store.Serves(define.Resource()), s.config.Kinds); err != nil {
		return err
	}
	workspaces := tenancy.WorkspaceResource(identity)
	s.tree = tree.NewTree(s.store, workspaces, s.config.ExternalURL)
	types := tree.TypeResource(identity)
	s.types = tree.NewTypes(s.store, types, s.tree, s.config.ExternalURL)
	s.store.SetTenant(s.tree.Tenant)
	s.quotas.SetBounds(func(c cluster.Name) []quota.Bound { return s.tree.Bounds(c, s.config.TotalObjectLimit) }, s.tree.Above)
	shards := tenancy.ShardResource(identities[tenancy.ShardExport])
	s.workspaces = &tenancy.Workspaces{
		ShardResource: shards, Shards: tenancy.NewShards(s.store, shards),
		Store: s.store, Resource: workspaces, Tree: s.tree, TypeResource: types, Types: s.types, Shard: s.config.Shard,
		BaseURL: s.config.ExternalURL, RootCA: s.ca, NameElsewhere: auth.NameElsewhere,
	}
	s.remover = &removal.Remover{Workspaces: s.workspaces, Hooked: s.hooks.Deletes, DeletedLast: s.config.DeletedLast}
	return nil
}

// assembleSharing builds the exports, the bindings and the resources that consumers do not store.
func (s *Server) assembleSharing(identities map[string]string) *endpoints.Endpoints {
	s.apis = bind.New(s.store, exports.New(s.store, s.definitions, s.workspaces), s.definitions, s.resolver, s.workspaces)
	s.apis.MayBind = s.mayBindExport
	ends := endpoints.New(s.store, s.apis, s.workspaces, identities[tenancy.TopologyExport])
	s.virtual = virtual.New(virtual.Config{
		Store: s.store, Resolver: s.resolver, APIs: s.apis, Endpoints: ends, Workspaces: s.workspaces,
		Identity: identities[tenancy.CacheExport], Remote: s.mountProxy().To,
	})
	s.checker = &evolve.Checker{APIs: s.apis, Store: s.store, Inspect: s.pool.Inspect, PathOf: s.tree.PathOf, Compute: func(ctx context.Context, c cluster.Name, f func()) error {
		return s.computeFor(ctx, c, fair.Heavy, f)
	}}
	s.exports.Follow(s.apis, s.schemas.Changed)
	s.apis.OnSchemas(s.schemas.Changed)
	s.store.Feed().Follow(s.schemas) // after the bindings
	return ends
}

// assembleLoops builds the loops, and what counts for them.
func (s *Server) assembleLoops(ends *endpoints.Endpoints) {
	s.tallies = usage.NewRequests(s.store, System().GetName())
	s.meter = usage.New(usage.Config{Store: s.store, APIs: s.apis, Tree: s.tree, Requests: s.tallies, Every: s.config.UsageEvery})
	kinds := s.kinds()
	collector := garbage.New(s.store, kinds, s.ownLoops)
	s.references = garbage.NewReferences(collector, s.tree.Tenant)
	s.loops = controllers.All(controllers.Deps{
		Store: s.store, Workspaces: s.workspaces, Remover: s.remover, Tokens: s.accounts,
		Policy: s.authz.Bootstrap(), Namespaces: s.namespaces, Quotas: s.quotas, ClusterRoles: s.rbac.Table(),
		Garbage: collector, Kinds: kinds, Definitions: s.definitions, APIs: s.apis, Endpoints: ends, Virtual: s.virtual, Usage: s.meter, Checker: s.checker,
		Client: s.ownLoops, Issue: s.clients.Issue, DeletedLast: s.config.DeletedLast,
	})
}
