package server

import (
	"context"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/controllers"
	"github.com/unforked/kcp/internal/serve"
	"github.com/unforked/kcp/internal/tenancy"
)

// prepareTree makes what a first start must before anything can be served: the
// identity under which workspaces are stored, and with it what clusters serve.
func (s *Server) prepareTree(ctx context.Context) error {
	identity, err := tenancy.Identity(ctx, s.store, string(s.ca))
	if err != nil {
		return err
	}
	if s.given, err = newGiven(identity, s.config.Kinds); err != nil {
		return err
	}
	workspaces := tenancy.WorkspaceResource(identity)
	s.tree = tenancy.NewTree(s.store, workspaces, s.config.ExternalURL)
	types := tenancy.TypeResource(identity)
	s.types = tenancy.NewTypes(s.store, types, s.tree, s.config.ExternalURL)
	s.workspaces = &tenancy.Workspaces{
		Store: s.store, Resource: workspaces, Tree: s.tree, TypeResource: types, Types: s.types,
		BaseURL: s.config.ExternalURL, RootCA: string(s.ca), NameElsewhere: auth.NameElsewhere,
	}
	s.inactive, s.issuers = newInactive(s.tree, s.store), newWorkspaceIssuers(s.store, identity)
	s.store.OnCreate(workspaces, s.workspaces.Create)
	s.store.OnWrite(types, s.workspaces.DeriveType)
	s.viewed()
	s.loops = controllers.All(controllers.Deps{
		Store: s.store, Workspaces: s.workspaces, Tokens: s.accounts,
		Policy: s.authz.Bootstrap(), Namespaces: s.namespaces, ClusterRoles: s.rbac.clusterRoles,
		Kinds: serve.NewKinds(s.natives, s.definitions.Shape), Definitions: s.definitions,
		Client: s.ownLoops,
	})
	return nil
}
