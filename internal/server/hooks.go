package server

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/dial"
	"github.com/unforked/kcp/internal/hooks"
)

// prepareHooks sets s.hooks, which call webhooks and evaluate policies after the rules. s.dialer
// and s.apis are set later.
func (s *Server) prepareHooks(context.Context) error {
	s.hooks = hooks.New(hooks.Config{
		Store: s.store, Rules: s.rules, Authorizer: s.authorizers(),
		Dialer: func() *dial.Dialer { return s.dialer },
		Provider: func(c cluster.Name, gr schema.GroupResource) (cluster.Name, bool) {
			_, b := s.apis.Bindings.Owner(c, gr)
			if b == nil {
				return "", false
			}
			return b.Export.Cluster, true
		},
	})
	return nil
}
