package kcp

import (
	"context"

	"github.com/unforked/kcp/internal/network/peers"
)

// A Peer is another server on the same etcd.
type Peer = peers.Peer

// Announce makes the other servers on the same etcd find this one, until ctx ends. It returns then. It
// returns at once before Start, with an etcd in this process, and if no extension has
// [Extension.Peers].
func (s *Server) Announce(ctx context.Context) {
	if s.inner != nil && s.inner.Peers() != nil {
		s.inner.Peers().Announce(ctx)
	}
}

// Peers returns the other servers on the same etcd that announce themselves. Each serves the handlers
// of its extensions in [Extension.Peers] to this one. There are none with an etcd in this process, or
// if no extension has such handlers. Before Start, Peers returns an error.
func (s *Server) Peers(ctx context.Context) ([]Peer, error) {
	if s.inner == nil {
		return nil, errNotStarted
	}
	if s.inner.Peers() == nil {
		return nil, nil
	}
	return s.inner.Peers().Others(ctx)
}
