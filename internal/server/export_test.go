package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/unforked/kcp/internal/auth/credentials"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/quota/limits"
	"github.com/unforked/kcp/internal/storage/store"
)

// IssueForTest returns a certificate for a host and its key in PEM, and the authority that
// signed it. A nil authority makes a new one.
func IssueForTest(name string, authority *tls.Certificate) (cert, key []byte, by *tls.Certificate, err error) {
	if authority == nil {
		cert, key, err := credentials.Issue(&x509.Certificate{
			Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		}, nil)
		if err != nil {
			return nil, nil, nil, err
		}
		made, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, nil, nil, err
		}
		authority = &made
	}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	cert, key, err = credentials.Issue(template, authority)
	return append(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Certificate[0]})...), key, authority, err
}

// Handlers returns the number of handlers of custom resources.
func (s *Server) Handlers() int { return s.pool.Handlers() }

// Store returns the server's store.
func (s *Server) Store() *store.Store { return s.store }

// Quotas returns what enforces ResourceQuotas.
func (s *Server) Quotas() *limits.Quotas { return s.quotas }

// UserOf returns whom a client certificate authenticates in a cluster, or nothing.
func (s *Server) UserOf(ctx context.Context, c cluster.Name, certificate *x509.Certificate) string {
	req := &http.Request{Header: http.Header{}, URL: &url.URL{Path: "/"}, TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate}}}
	r, ok, err := s.authn.AuthenticateRequest(req.WithContext(cluster.With(ctx, c)))
	if err != nil || !ok {
		return ""
	}
	return r.User.GetName()
}
