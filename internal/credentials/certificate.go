// Package credentials manages the server's own keys: its serving certificate, the authority
// that signs it, the key of service account tokens, and the tokens of administrators. They
// are files of one server, or in etcd if several servers share it.
package credentials

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/klog/v2"
)

const (
	authorityLife   = 10 * 365 * 24 * time.Hour
	authorityRenew  = 2 * certificateLife // before its expiry, when the server starts
	certificateLife = 365 * 24 * time.Hour
	renewBefore     = 30 * 24 * time.Hour
	renewCheck      = time.Hour
)

// A Certificate is the serving certificate that the server makes if none is
// configured. The server's own authority signs it. So clients, which trust the authority,
// accept renewed certificates, too. Its files are in a directory.
type Certificate struct {
	dir       string
	hosts     []string
	authority tls.Certificate

	mu        sync.Mutex
	cert, key []byte // PEM; cert is the server's certificate followed by the authority's
	renewAt   time.Time
	listeners []dynamiccertificates.Listener
}

var (
	_ dynamiccertificates.CertKeyContentProvider = (*Certificate)(nil)
	_ dynamiccertificates.ControllerRunner       = (*Certificate)(nil)
)

// NewCertificate returns a certificate for the hosts, signed by the authority that find
// returns. It uses the certificate in dir if that one covers all hosts and is not due for
// renewal, and makes a new one otherwise.
func NewCertificate(dir string, hosts []string, find func(certFile, keyFile string) (tls.Certificate, error)) (*Certificate, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of the serving certificate: %w; use --cert-dir to choose a directory that the server can create", err)
	}
	o := &Certificate{dir: dir, hosts: hosts}
	var err error
	if o.authority, err = find(filepath.Join(dir, "apiserver-ca.crt"), filepath.Join(dir, "apiserver-ca.key")); err != nil {
		return nil, err
	}
	if !o.load() {
		err = o.renew()
	}
	return o, err
}

// CA returns the certificate of the authority, in PEM.
func (o *Certificate) CA() []byte { return encodeCertificate(o.authority.Certificate[0]) }

func (o *Certificate) files() (cert, key string) {
	return filepath.Join(o.dir, "apiserver.crt"), filepath.Join(o.dir, "apiserver.key")
}

// load reads the certificate from the directory and reports whether it can be used. If it
// cannot, the caller makes a new one, so there is no error.
func (o *Certificate) load() bool {
	certFile, keyFile := o.files()
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil || time.Until(pair.Leaf.NotAfter) < renewBefore || pair.Leaf.CheckSignatureFrom(o.authority.Leaf) != nil {
		return false
	}
	for _, h := range o.hosts {
		if pair.Leaf.VerifyHostname(h) != nil {
			return false
		}
	}
	cert, err := os.ReadFile(certFile)
	if err != nil {
		return false
	}
	key, err := os.ReadFile(keyFile)
	if err != nil {
		return false
	}
	o.set(cert, key, pair.Leaf.NotAfter)
	return true
}

// renew makes a new certificate and writes it to the directory.
func (o *Certificate) renew() error {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "kcp"}, NotAfter: earlier(time.Now().Add(certificateLife), o.authority.Leaf.NotAfter),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, h := range o.hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	cert, key, err := Issue(template, &o.authority)
	if err != nil {
		return err
	}
	cert = append(cert, o.CA()...)
	certFile, keyFile := o.files()
	if err := keepPair(certFile, cert, keyFile, key); err != nil {
		return err
	}
	o.set(cert, key, template.NotAfter)
	return nil
}

func (o *Certificate) set(cert, key []byte, notAfter time.Time) {
	o.mu.Lock()
	o.cert, o.key, o.renewAt = cert, key, notAfter.Add(-renewBefore)
	listeners := o.listeners
	o.mu.Unlock()
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

// RunOnce implements [dynamiccertificates.ControllerRunner].
func (o *Certificate) RunOnce(context.Context) error { return nil }

// Run implements [dynamiccertificates.ControllerRunner]. It renews the certificate before
// it expires.
func (o *Certificate) Run(ctx context.Context, _ int) {
	tick := time.NewTicker(renewCheck) // no timer: machines sleep, and clocks are adjusted
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		o.mu.Lock()
		due := !time.Now().Before(o.renewAt)
		o.mu.Unlock()
		if !due {
			continue
		}
		if err := o.renew(); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot renew the serving certificate; retrying")
			continue
		}
		klog.FromContext(ctx).Info("Serving certificate renewed")
	}
}

// LoadAuthority returns the authority in the files. It makes a new one if there is none or
// it expires soon.
func LoadAuthority(certFile, keyFile string) (tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err == nil && time.Until(pair.Leaf.NotAfter) > authorityRenew {
		return pair, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return pair, fmt.Errorf("read the authority of the serving certificate: %w; remove %s and %s so that the server makes a new one", err, certFile, keyFile)
	}
	cert, key, err := makeAuthority()
	if err != nil {
		return pair, err
	}
	if err := keepPair(certFile, cert, keyFile, key); err != nil {
		return pair, err
	}
	return tls.X509KeyPair(cert, key)
}

// makeAuthority returns the certificate and the key of a new authority, in PEM.
func makeAuthority() (cert, key []byte, err error) {
	return Issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "kcp-ca"}, NotAfter: time.Now().Add(authorityLife),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}, nil)
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
	template.NotBefore = time.Now().Add(-time.Hour)
	parent, signer := template, crypto.PrivateKey(private)
	if authority != nil {
		parent, signer = authority.Leaf, authority.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, private.Public(), signer)
	if err != nil {
		return nil, nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return encodeCertificate(der), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), nil
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
