package server

import (
	"cmp"
	"net"
	"net/url"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/network/dial"
)

// newDialer returns the dialer for calls to addresses that tenants configure. It never
// calls the server itself or its etcd.
func (s *Server) newDialer() *dial.Dialer {
	o := dial.Options{Allow: s.config.EgressAllow, Deny: s.config.EgressDeny, Owner: func(c cluster.Name) cluster.Name { return s.tree.Tenant(c) }}
	if at, ok := s.config.Listener.Addr().(*net.TCPAddr); ok {
		o.Own = append(o.Own, at.String())
	}
	for _, text := range s.config.Etcd.Servers {
		if u, err := url.Parse(text); err == nil && u.Hostname() != "" {
			o.Own = append(o.Own, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443")))
		}
	}
	return dial.New(o)
}
