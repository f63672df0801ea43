package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"
)

// maxStreams is how many requests one HTTP/2 connection may have open by default,
// as of a kube-apiserver.
const maxStreams = 1000

// prepareListener takes up what was chosen about TLS, and the certificates that were
// given.
func (s *Server) prepareListener(context.Context) error {
	if s.config.Listener == nil {
		s.config.Listener = newNowhere()
	}
	given := *s.config.Serving
	given.Listener = s.config.Listener
	if err := given.ApplyTo(&s.serving); err != nil {
		return fmt.Errorf("%w; correct the flags --tls-*", err)
	}
	suites := s.serving.CipherSuites
	if len(suites) > 0 && !s.serving.DisableHTTP2 && s.serving.MinTLSVersion < tls.VersionTLS13 &&
		!slices.Contains(suites, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256) && !slices.Contains(suites, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256) {
		return errors.New("--tls-cipher-suites lacks what HTTP/2 needs; add TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 or TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, or set --disable-http2-serving")
	}
	return nil
}

// prepareServing finds what verifies the certificate of the listener, which it makes
// if none was given.
func (s *Server) prepareServing(ctx context.Context) error {
	external, err := url.Parse(s.config.ExternalURL)
	if err != nil {
		return err
	}
	if s.serving.Cert != nil {
		s.ca, err = verifierOf(s.config.Serving, s.serving, external.Hostname())
		return err
	}
	hosts := []string{"localhost", "127.0.0.1", "::1"}
	if h := external.Hostname(); h != "" && !slices.Contains(hosts, h) {
		hosts = append(hosts, h)
	}
	authority := loadAuthority
	if s.store.Several() {
		authority = func(string, string) (tls.Certificate, error) { return s.commonAuthority(ctx) }
	}
	own, err := newOwnCertificate(cmp.Or(s.config.Serving.ServerCert.CertDirectory, s.config.Dir), hosts, authority)
	if err != nil {
		return err
	}
	s.serving.Cert, s.ca = own, own.ca()
	if sni := sniFor(s.serving, external.Hostname()); sni != nil {
		s.ca, err = topOf(sni)
	}
	return err
}

// checkServing finds what is wrong with the certificates that were given, and says
// so in terms of the flags.
func checkServing(o *options.SecureServingOptions) error {
	pair := o.ServerCert.CertKey
	if (pair.CertFile == "") != (pair.KeyFile == "") {
		return errors.New("--tls-cert-file and --tls-private-key-file belong together; give both, or neither to have a certificate made")
	}
	for flag, file := range map[string]string{"--tls-cert-file": pair.CertFile, "--tls-private-key-file": pair.KeyFile} {
		if err := readable(file); err != nil {
			return fmt.Errorf("%s: %w; name a PEM file that the server can read", flag, err)
		}
	}
	for _, named := range o.SNICertKeys {
		if err := errors.Join(readable(named.CertFile), readable(named.KeyFile)); err != nil {
			return fmt.Errorf("--tls-sni-cert-key: %w; name PEM files that the server can read", err)
		}
	}
	return nil
}

func readable(file string) error {
	if file == "" {
		return nil
	}
	_, err := os.ReadFile(file)
	return err
}

// verifierOf returns what clients verify the certificate with that they get when
// they ask for host, in PEM.
func verifierOf(o *options.SecureServingOptions, serving *genericapiserver.SecureServingInfo, host string) ([]byte, error) {
	cert, _ := serving.Cert.CurrentCertKeyContent()
	if sni := sniFor(serving, host); sni != nil {
		cert = sni
	}
	ca, err := topOf(cert)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert-file %s: %w", o.ServerCert.CertKey.CertFile, err)
	}
	return ca, nil
}

// sniFor returns the certificate chain that is for host alone, or nil.
func sniFor(serving *genericapiserver.SecureServingInfo, host string) []byte {
	for _, c := range serving.SNICerts {
		cert, _ := c.CurrentCertKeyContent()
		chain, err := parseChain(cert)
		if err == nil && host != "" && (slices.Contains(c.SNINames(), host) || chain[0].VerifyHostname(host) == nil) {
			return cert
		}
	}
	return nil
}

// topOf returns what verifies a chain of certificates: the authority that the
// machine knows, or else what the chain ends in.
func topOf(cert []byte) ([]byte, error) {
	chain, err := parseChain(cert)
	if err != nil {
		return nil, err
	}
	leaf := chain[0]
	if time.Now().After(leaf.NotAfter) {
		return nil, fmt.Errorf("the certificate was good until %s; give one that still is", leaf.NotAfter.Format(time.DateTime))
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	if known, err := leaf.Verify(x509.VerifyOptions{Intermediates: between}); err == nil {
		top := known[0]
		return encodeCertificate(top[len(top)-1].Raw), nil
	}
	return encodeCertificate(chain[len(chain)-1].Raw), nil
}

func parseChain(text []byte) ([]*x509.Certificate, error) {
	var chain []*x509.Certificate
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		chain = append(chain, c)
	}
	if len(chain) == 0 {
		return nil, errors.New("no certificate in PEM")
	}
	return chain, nil
}
