package server

import (
	"context"

	"github.com/unforked/kcp/internal/network/peers"
)

// preparePeers makes the listener serve the other servers on the same etcd.
func (s *Server) preparePeers(ctx context.Context) error {
	if !s.store.Shared() || len(s.config.Peers) == 0 {
		return nil
	}
	address, err := peers.Address(s.config.PeerAddress, s.config.Listener.Addr())
	if err != nil {
		return err
	}
	if s.peers, err = peers.New(ctx, s.store, address, s.config.Peers); err != nil {
		return err
	}
	own, err := s.peers.Certificate()
	s.serving.SNICerts = append(s.serving.SNICerts, own)
	return err
}
