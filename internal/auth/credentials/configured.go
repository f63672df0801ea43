package credentials

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"
)

// CheckFiles checks the configured certificates. Its errors name the flags.
func CheckFiles(o *options.SecureServingOptions) error {
	pair := o.ServerCert.CertKey
	if (pair.CertFile == "") != (pair.KeyFile == "") {
		return errors.New("--tls-cert-file and --tls-private-key-file belong together; give both, or neither so that the server makes a certificate")
	}
	for flag, file := range map[string]string{"--tls-cert-file": pair.CertFile, "--tls-private-key-file": pair.KeyFile} {
		if err := Readable(file); err != nil {
			return fmt.Errorf("%s: %w; name a PEM file that the server can read", flag, err)
		}
	}
	for _, named := range o.SNICertKeys {
		if err := errors.Join(Readable(named.CertFile), Readable(named.KeyFile)); err != nil {
			return fmt.Errorf("--tls-sni-cert-key: %w; name PEM files that the server can read", err)
		}
	}
	return nil
}

// Readable returns an error if the server cannot read a file. An empty name is no error.
func Readable(file string) error {
	if file == "" {
		return nil
	}
	_, err := os.ReadFile(file)
	return err
}

// Verifiers returns, in PEM, the certificates with which clients verify the server's certificate
// for host: its authority, and further authorities in its file. So clients can learn a new
// authority before it signs.
func Verifiers(o *options.SecureServingOptions, serving *genericapiserver.SecureServingInfo, host string) ([]byte, error) {
	cert, _ := serving.Cert.CurrentCertKeyContent()
	if sni := sniChain(serving, host); sni != nil {
		cert = sni
	}
	trusted, err := verifiersOf(cert)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert-file %s: %w", o.ServerCert.CertKey.CertFile, err)
	}
	return trusted, nil
}

// SNIVerifiers returns, in PEM, the certificates that verify the one that is configured for the
// SNI name host. It returns nil if there is none.
func SNIVerifiers(serving *genericapiserver.SecureServingInfo, host string) ([]byte, error) {
	chain := sniChain(serving, host)
	if chain == nil {
		return nil, nil
	}
	return verifiersOf(chain)
}

// sniChain returns the certificate chain configured for the SNI name host, or nil.
func sniChain(serving *genericapiserver.SecureServingInfo, host string) []byte {
	for _, c := range serving.SNICerts {
		cert, _ := c.CurrentCertKeyContent()
		chain, err := parseChain(cert)
		if err == nil && host != "" && (slices.Contains(c.SNINames(), host) || chain[0].VerifyHostname(host) == nil) {
			return cert
		}
	}
	return nil
}

// verifiersOf returns, in PEM, the certificates that verify a chain: a root that the machine
// trusts, or else the last issuer in the chain, and all other roots in it.
func verifiersOf(cert []byte) ([]byte, error) {
	chain, err := parseChain(cert)
	if err != nil {
		return nil, err
	}
	leaf := chain[0]
	if time.Now().After(leaf.NotAfter) {
		return nil, fmt.Errorf("the certificate expired at %s; replace it", leaf.NotAfter.Format(time.DateTime))
	}
	top := topOf(chain)
	all := encodeCertificate(top.Raw)
	for _, c := range chain[1:] {
		if isRoot(c) && !c.Equal(top) {
			all = append(all, encodeCertificate(c.Raw)...)
		}
	}
	return all, nil
}

func topOf(chain []*x509.Certificate) *x509.Certificate {
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	if known, err := chain[0].Verify(x509.VerifyOptions{Intermediates: between}); err == nil {
		return known[0][len(known[0])-1]
	}
	top := chain[0]
	for range chain {
		i := slices.IndexFunc(chain, func(c *x509.Certificate) bool { return !c.Equal(top) && top.CheckSignatureFrom(c) == nil })
		if i < 0 || isRoot(top) {
			break
		}
		top = chain[i]
	}
	return top
}

func isRoot(c *x509.Certificate) bool {
	return c.IsCA && bytes.Equal(c.RawSubject, c.RawIssuer) && c.CheckSignatureFrom(c) == nil
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
