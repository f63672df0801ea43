package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/unforked/kcp/internal/credentials"
	"github.com/unforked/kcp/internal/edge"
	"github.com/unforked/kcp/internal/peers"
)

// maxStreams is the default limit of open requests per HTTP/2 connection, that of
// kube-apiserver.
const maxStreams = 1000

// prepareListener applies the TLS options and loads the certificates that they name.
func (s *Server) prepareListener(context.Context) error {
	if s.config.Listener == nil {
		s.config.Listener = newNowhere()
	}
	given := *s.config.Serving
	given.Listener = s.config.Listener
	if err := given.ApplyTo(&s.serving); err != nil {
		return fmt.Errorf("%w; correct the flags --tls-*", err)
	}
	if n, ok := s.config.Listener.(*nowhere); ok {
		s.serving.Listener = unaddressed{n}
	} else {
		s.serving.Listener = edge.Bound(edge.Pace(s.serving.Listener))
	}
	suites := s.serving.CipherSuites
	if len(suites) > 0 && !s.serving.DisableHTTP2 && s.serving.MinTLSVersion < tls.VersionTLS13 &&
		!slices.Contains(suites, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256) && !slices.Contains(suites, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256) {
		return errors.New("--tls-cipher-suites lacks a cipher suite that HTTP/2 requires; add TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 or TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, or set --disable-http2-serving")
	}
	return nil
}

// prepareServing sets s.ca, the certificate that verifies the listener's certificate.
// Without a configured certificate the server makes its own.
func (s *Server) prepareServing(ctx context.Context) error {
	external, err := url.Parse(s.config.ExternalURL)
	if err != nil {
		return err
	}
	if s.serving.Cert != nil {
		s.ca, err = credentials.Verifier(s.config.Serving, s.serving, external.Hostname())
		return err
	}
	hosts := []string{"localhost", "127.0.0.1", "::1"}
	if h := external.Hostname(); h != "" && !slices.Contains(hosts, h) {
		hosts = append(hosts, h)
	}
	authority := credentials.LoadAuthority
	if s.store.Several() {
		authority = func(string, string) (tls.Certificate, error) { return credentials.SharedAuthority(ctx, s.store) }
	}
	own, err := credentials.NewCertificate(cmp.Or(s.config.Serving.ServerCert.CertDirectory, s.config.Dir), hosts, authority)
	if err != nil {
		return err
	}
	s.serving.Cert, s.ca = own, own.CA()
	if ca, err := credentials.SNIVerifier(s.serving, external.Hostname()); ca != nil || err != nil {
		s.ca = ca
		return err
	}
	return nil
}

// preparePeers makes the listener serve the other servers on the same etcd.
func (s *Server) preparePeers(ctx context.Context) error {
	if !s.store.Several() || len(s.config.Peers) == 0 {
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

// Peers returns the other servers on the same etcd, nil if there are none by configuration.
func (s *Server) Peers() *peers.Peers { return s.peers }

// etcdReady is a readiness check and no liveness check: without etcd no request can be
// served, but a restart would not help.
func (s *Server) etcdReady(req *http.Request) error { return s.store.Reachable(req.Context()) }
