package server

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"time"

	"github.com/unforked/kcp/internal/store"
)

// IssueForTest returns a certificate for a host, and its key, in PEM, and its
// authority: the one given, or if that is nil a new one.
func IssueForTest(name string, authority *tls.Certificate) (cert, key []byte, by *tls.Certificate, err error) {
	if authority == nil {
		cert, key, err := issue(&x509.Certificate{
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
	cert, key, err = issue(template, authority)
	return append(cert, encodeCertificate(authority.Certificate[0])...), key, authority, err
}

// Handlers returns how many handlers of custom resources there are.
func (s *Server) Handlers() int { return s.pool.Handlers() }

// Store returns the server's store.
func (s *Server) Store() *store.Store { return s.store }
