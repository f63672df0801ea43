package server

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/network/dial"
	"github.com/unforked/kcp/internal/network/peers"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
)

// The methods in this file are the part of a server that extensions use, see package kcp.

// Go runs f in a goroutine with a context that Close cancels. Close waits for f to return.
func (s *Server) Go(f func(context.Context)) { s.running.Go(func() { f(s.ctx) }) }

// Ledger returns the counts of the objects of every cluster.
func (s *Server) Ledger() *feed.Ledger { return s.store.Feed().Ledger() }

// Tenant returns the tenant of a cluster.
func (s *Server) Tenant(c cluster.Name) cluster.Name { return s.tree.Tenant(c) }

// Closing returns a channel that is closed when Close ends the open requests.
func (s *Server) Closing() <-chan struct{} { return s.ctx.Done() }

// Dialer returns the dialer for calls to addresses that tenants configure.
func (s *Server) Dialer() *dial.Dialer { return s.dialer }

// Peers returns the other servers on the same etcd, nil if there are none by configuration.
func (s *Server) Peers() *peers.Peers { return s.peers }

// Bound returns the export whose binding gives a cluster a resource.
func (s *Server) Bound(c cluster.Name, gr schema.GroupResource) (home cluster.Name, export string, ok bool) {
	e, ok := s.apis.Bindings.ExportOf(c, gr)
	return e.Cluster, e.Name, ok
}

// NamespaceLabels reads the labels of a namespace from etcd, and reports whether there is such a
// namespace.
func (s *Server) NamespaceLabels(ctx context.Context, c cluster.Name, name string) (labels map[string]string, ok bool, err error) {
	o, _, err := s.store.Read(ctx, keys.Key{Resource: keys.NativeResource(corev1.Resource("namespaces")), Cluster: c, Name: name})
	if o == nil || err != nil {
		return nil, false, err
	}
	of, err := meta.Accessor(o)
	if err != nil {
		return nil, false, err
	}
	return of.GetLabels(), true, nil
}

// NamespaceChanges returns a source that wakes a loop with the key of each namespace that changes, in
// the clusters for which wants returns true.
func (s *Server) NamespaceChanges(wants func(cluster.Name) bool) control.Source {
	return control.Source{Ready: s.store.Feed().Ready(), Subscribe: func(wake func(control.Key)) (unsubscribe func()) {
		return s.namespaces.Subscribe(func(k keys.Key) {
			if wants(k.Cluster) {
				wake(trigger.Key(k))
			}
		})
	}}
}

// CertifyAgent returns a client certificate for an agent of an extension, see
// [authn.ClientCertificates.IssueAgent].
func (s *Server) CertifyAgent(at cluster.Name, name string, request []byte, life time.Duration) ([]byte, error) {
	return s.clients.IssueAgent(at, name, request, life)
}
