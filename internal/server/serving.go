package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"slices"

	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/auth/credentials"
	"github.com/unforked/kcp/internal/request/connections"
	"github.com/unforked/kcp/internal/tenancy"
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
		s.serving.Listener = connections.Limit(connections.LimitReads(s.serving.Listener))
	}
	suites := s.serving.CipherSuites
	if len(suites) > 0 && !s.serving.DisableHTTP2 && s.serving.MinTLSVersion < tls.VersionTLS13 &&
		!slices.Contains(suites, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256) && !slices.Contains(suites, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256) {
		return errors.New("--tls-cipher-suites lacks a cipher suite that HTTP/2 requires; add TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 or TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, or set --disable-http2-serving")
	}
	return nil
}

// prepareServing sets s.ca, the certificates that verify the listener's certificate.
// Without a configured certificate the server makes its own.
func (s *Server) prepareServing(ctx context.Context) error {
	external, err := url.Parse(s.config.ExternalURL)
	if err != nil {
		return err
	}
	if s.serving.Cert == nil {
		hosts := []string{"localhost", "127.0.0.1", "::1"}
		if h := external.Hostname(); h != "" && !slices.Contains(hosts, h) {
			hosts = append(hosts, h)
		}
		find := credentials.LoadAuthorities
		if s.store.Shared() {
			find = func(ctx context.Context, _, _ string) (credentials.Authorities, error) {
				return credentials.SharedAuthorities(ctx, s.store, credentials.OfServing)
			}
		}
		s.own, err = credentials.NewCertificate(ctx, cmp.Or(s.config.Serving.ServerCert.CertDirectory, s.config.Dir), hosts, find)
		if err != nil {
			return err
		}
		s.serving.Cert = s.own
	}
	s.served = make(changes, 1)
	s.serving.Cert.AddListener(s.served)
	for _, sni := range s.serving.SNICerts {
		sni.AddListener(s.served)
	}
	ca, err := s.verifiers(external.Hostname())
	s.ca = tenancy.NewRootCA(string(ca))
	return err
}

// verifiers returns the certificates that verify the listener's certificate for host.
func (s *Server) verifiers(host string) ([]byte, error) {
	if s.own == nil {
		return credentials.Verifiers(s.config.Serving, s.serving, host)
	}
	if ca, err := credentials.SNIVerifiers(s.serving, host); ca != nil || err != nil {
		return ca, err
	}
	return s.own.CA(), nil
}

// refreshServing takes in changes of the authority of the server's own certificate, and renews the
// certificate if it is due.
func (s *Server) refreshServing(ctx context.Context) error {
	if s.own == nil {
		return nil
	}
	return s.own.Refresh(ctx)
}

// changes receives a value after each change of the serving certificates. It implements
// [dynamiccertificates.Listener].
type changes chan struct{}

func (c changes) Enqueue() {
	select {
	case c <- struct{}{}:
	default: // one change waits already
	}
}

// followServing brings the certificates that verify the server into the administrators' kubeconfig
// and, by s.ca, into every namespace, when the serving certificate has another authority.
func (s *Server) followServing(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.served:
		}
		log := klog.FromContext(ctx)
		external, err := url.Parse(s.config.ExternalURL)
		if err != nil {
			log.Error(err, "The server has no valid URL")
			return
		}
		ca, err := s.verifiers(external.Hostname())
		if err != nil {
			log.Error(err, "Namespaces keep the authorities of the last serving certificate")
			continue
		}
		if !s.ca.Set(string(ca)) {
			continue
		}
		log.Info("The authorities of the serving certificate have changed")
		if err := s.writeKubeconfig(ctx); err != nil {
			log.Error(err, "The kubeconfig has the authorities of the last serving certificate")
		}
	}
}
