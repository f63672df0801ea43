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
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// prepareTree reads the identity of the workspaces API, or creates it at the first start.
// All parts that depend on the identity are built here.
func (s *Server) prepareTree(ctx context.Context) error {
	identities := map[string]string{}
	for _, b := range tenancy.BuiltIns() {
		var err error
		if identities[b.Name], err = tenancy.Identity(ctx, s.store, s.ca.Text(), b.Name); err != nil {
			return err
		}
	}
	identity := identities[tenancy.Export]
	var err error
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
		BaseURL: s.config.ExternalURL, RootCA: s.ca, NameElsewhere: auth.NameElsewhere, Hooked: s.hooks.Deletes,
	}
	s.apis = bind.New(s.store, exports.New(s.store, s.definitions, s.workspaces), s.definitions, s.resolver, s.workspaces)
	s.apis.MayBind = s.mayBindExport
	slices := endpoints.New(s.store, s.apis, s.workspaces, identities[tenancy.TopologyExport])
	s.virtual = virtual.New(virtual.Config{
		Store: s.store, Resolver: s.resolver, APIs: s.apis, Endpoints: slices, Workspaces: s.workspaces,
		Identity: identities[tenancy.CacheExport], Remote: s.mountProxy().To,
	})
	s.checker = &evolve.Checker{APIs: s.apis, Store: s.store, Inspect: s.pool.Inspect, PathOf: s.tree.PathOf, Compute: func(ctx context.Context, c cluster.Name, f func()) error {
		return s.computeFor(ctx, c, fair.Heavy, f)
	}}
	s.exports.Follow(s.apis, s.schemas.Changed)
	s.apis.OnSchemas(s.schemas.Changed)
	s.store.Feed().Follow(s.schemas) // after the bindings
	s.offline, s.issuers = offline.New(s.tree, s.store), lookup.NewIssuers(s.store, identity)
	s.store.OnCreate(workspaces, s.workspaces.Create)
	s.store.OnWrite(types, s.workspaces.DeriveType)
	s.viewed()
	questions := &reach.Queries{Authorizer: s.authz, RBAC: s.rbac, Workspaces: s.workspaces, APIs: s.apis}
	if err := questions.Install(s.generic.Handler.NonGoRestfulMux); err != nil {
		return err
	}
	s.tallies = usage.NewRequests(s.store, System().GetName())
	s.meter = usage.New(usage.Config{Store: s.store, APIs: s.apis, Tree: s.tree, Requests: s.tallies, Every: s.config.UsageEvery})
	kinds := s.kinds()
	collector := garbage.New(s.store, kinds, s.ownLoops)
	s.references = garbage.NewReferences(collector, s.tree.Tenant)
	s.loops = controllers.All(controllers.Deps{
		Store: s.store, Workspaces: s.workspaces, Tokens: s.accounts,
		Policy: s.authz.Bootstrap(), Namespaces: s.namespaces, Quotas: s.quotas, ClusterRoles: s.rbac.Table(),
		Garbage: collector, Kinds: kinds, Definitions: s.definitions, APIs: s.apis, Endpoints: slices, Virtual: s.virtual, Usage: s.meter, Checker: s.checker,
		Client: s.ownLoops, Issue: s.clients.Issue, DeletedLast: s.config.DeletedLast,
	})
	return nil
}
