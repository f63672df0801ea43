package server

import (
	"net"

	"github.com/unforked/kcp/internal/dial"
)

// newDialer returns what makes the calls that tenants cause. It does not call the
// server itself.
func (s *Server) newDialer() *dial.Dialer {
	o := dial.Options{Allow: s.config.EgressAllow, Deny: s.config.EgressDeny}
	if at, ok := s.config.Listener.Addr().(*net.TCPAddr); ok {
		o.Own = append(o.Own, at.String())
	}
	return dial.New(o)
}
