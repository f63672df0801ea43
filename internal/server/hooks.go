package server

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/unforked/kcp/internal/admit/hooks"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/network/dial"
	"github.com/unforked/kcp/internal/resources/catalog"
)

// prepareHooks sets s.hooks, which call webhooks and evaluate policies after the rules. s.natives,
// s.dialer, s.tree and s.apis are set later.
func (s *Server) prepareHooks(context.Context) error {
	s.kinds = sync.OnceValue(func() *catalog.Kinds { return catalog.NewKinds(s.natives.Kinds, s.resolver.Shape) })
	s.hooks = hooks.New(hooks.Config{
		Store: s.store, Rules: s.rules, Authorizer: s.authorizers(),
		Dialer: func() *dial.Dialer { return s.dialer },
		Provider: func(c cluster.Name, gr schema.GroupResource) (cluster.Name, bool) {
			e, ok := s.apis.Bindings.ExportOf(c, gr)
			return e.Cluster, ok
		},
		Above:  func(c cluster.Name) ([]cluster.Name, bool) { return s.tree.Above(c) },
		Tenant: s.Tenant,
		PathOf: func(c cluster.Name) cluster.Path { return s.tree.PathOf(c) },
		Kind:   s.kind, Client: s.ownLoops,
		Models: func() []map[string]*spec.Schema {
			return []map[string]*spec.Schema{s.natives.Models, s.natives.Further}
		},
	})
	return nil
}

// kind returns a kind that cluster c serves.
func (s *Server) kind(c cluster.Name, gvk schema.GroupVersionKind) (catalog.Kind, bool) {
	return s.kinds().Find(c, gvk)
}
