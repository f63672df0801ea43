// Package credentials manages the server's own keys: its serving certificate, the authority
// that signs it, the key of service account tokens, and the tokens of administrators. They
// are files of one server, or in etcd if several servers share it.
//
// Package authn, which verifies tokens and client certificates, gets keys and tokens as values. It
// does not know where they are kept.
package credentials

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

const (
	certificateLife = 365 * 24 * time.Hour
	renewBefore     = 30 * 24 * time.Hour
)

// A Certificate is the serving certificate that the server makes if none is
// configured. The server's own authority signs it. So clients, which trust the authority,
// accept renewed certificates, too. Its files are in a directory.
type Certificate struct {
	dir   string
	hosts []string
	find  func(ctx context.Context, certFile, keyFile string) (Authorities, error)

	mu          sync.Mutex
	authorities Authorities
	cert, key   []byte // PEM; cert is the server's certificate followed by the authority's
	leaf        *x509.Certificate
	listeners   []dynamiccertificates.Listener
}

var _ dynamiccertificates.CertKeyContentProvider = (*Certificate)(nil)

// NewCertificate returns a certificate for the hosts, signed by the first of the authorities that
// find returns. It uses the certificate in dir if that one covers all hosts and is not due for
// renewal, and makes a new one otherwise.
func NewCertificate(ctx context.Context, dir string, hosts []string, find func(ctx context.Context, certFile, keyFile string) (Authorities, error)) (*Certificate, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of the serving certificate: %w; use --cert-dir to choose a directory that the server can create", err)
	}
	o := &Certificate{dir: dir, hosts: hosts, find: find}
	return o, o.Refresh(ctx)
}

// Refresh takes in changes of the authorities, and renews the certificate if it is due or if
// another authority signs now.
func (o *Certificate) Refresh(ctx context.Context) error {
	all, err := o.find(ctx, filepath.Join(o.dir, "apiserver-ca.crt"), filepath.Join(o.dir, "apiserver-ca.key"))
	if err != nil {
		return err
	}
	signer := all.Signer()
	if o.good(o.leaf, signer) {
		o.set(all, o.cert, o.key, o.leaf)
		return nil
	}
	certFile, keyFile := o.files()
	if cert, key, err := readPair(certFile, keyFile); err == nil {
		if pair, err := tls.X509KeyPair(cert, key); err == nil && o.good(pair.Leaf, signer) {
			o.set(all, cert, key, pair.Leaf)
			return nil
		}
	}
	cert, key, leaf, err := o.issue(signer)
	if err == nil {
		err = keepPair(certFile, cert, keyFile, key)
	}
	if err == nil {
		o.set(all, cert, key, leaf)
	}
	return err
}

// CA returns the certificates of the authorities, in PEM.
func (o *Certificate) CA() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.authorities.Bundle()
}

func (o *Certificate) files() (cert, key string) {
	return filepath.Join(o.dir, "apiserver.crt"), filepath.Join(o.dir, "apiserver.key")
}

// good reports whether a certificate covers all hosts, is of the authority and not due for renewal.
func (o *Certificate) good(leaf *x509.Certificate, by tls.Certificate) bool {
	if leaf == nil || time.Until(leaf.NotAfter) < renewBefore || leaf.CheckSignatureFrom(by.Leaf) != nil {
		return false
	}
	return !slices.ContainsFunc(o.hosts, func(h string) bool { return leaf.VerifyHostname(h) != nil })
}

// issue makes a new certificate.
func (o *Certificate) issue(by tls.Certificate) (cert, key []byte, leaf *x509.Certificate, err error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "kcp"}, NotAfter: earlier(time.Now().Add(certificateLife), by.Leaf.NotAfter),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, h := range o.hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	if cert, key, err = Issue(template, &by); err != nil {
		return nil, nil, nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	return append(cert, encodeCertificate(by.Leaf.Raw)...), key, pair.Leaf, err
}

// set sets the certificate and the authorities, and notifies the listeners of changes.
func (o *Certificate) set(all Authorities, cert, key []byte, leaf *x509.Certificate) {
	o.mu.Lock()
	same := bytes.Equal(o.cert, cert) && bytes.Equal(o.authorities.Bundle(), all.Bundle())
	o.authorities, o.cert, o.key, o.leaf = all, cert, key, leaf
	listeners := o.listeners
	o.mu.Unlock()
	if same {
		return
	}
	for _, l := range listeners {
		l.Enqueue()
	}
}

// Name implements [dynamiccertificates.CertKeyContentProvider].
func (o *Certificate) Name() string { return "serving" }

// CurrentCertKeyContent implements [dynamiccertificates.CertKeyContentProvider].
func (o *Certificate) CurrentCertKeyContent() (cert, key []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.cert, o.key
}

// AddListener implements [dynamiccertificates.CertKeyContentProvider].
func (o *Certificate) AddListener(l dynamiccertificates.Listener) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.listeners = append(o.listeners, l)
}

// Issue returns a certificate for the template and its key, in PEM. A nil authority makes
// it self-signed. The key is an elliptic curve key: generating an RSA key would take
// longer than the rest of the start.
func Issue(template *x509.Certificate, authority *tls.Certificate) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126)); err != nil {
		return nil, nil, err
	}
	template.NotBefore = time.Now().Add(-backdated)
	parent, signer := template, crypto.PrivateKey(private)
	if authority != nil {
		parent, signer = authority.Leaf, authority.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, private.Public(), signer)
	if err != nil {
		return nil, nil, err
	}
	key, err = encodeKey(private)
	return encodeCertificate(der), key, err
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), err
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// keepPair writes a certificate and its key. It replaces each file atomically.
func keepPair(certFile string, cert []byte, keyFile string, key []byte) error {
	for _, f := range []struct {
		name string
		data []byte
		mode fs.FileMode
	}{{keyFile, key, 0o600}, {certFile, cert, 0o644}} {
		next := f.name + ".new"
		err := os.WriteFile(next, f.data, f.mode)
		if err == nil {
			err = os.Rename(next, f.name)
		}
		if err != nil {
			return fmt.Errorf("write the serving certificate: %w", err)
		}
	}
	return nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
