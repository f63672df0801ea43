package server

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
	authorityRenew  = 2 * certificateLife // before its end, at a start
	certificateLife = 365 * 24 * time.Hour
	renewBefore     = 30 * 24 * time.Hour
	renewCheck      = time.Hour
)

// An ownCertificate is the serving certificate of a server that was given none. An
// authority that the server has for this alone signs it, so that it can be renewed
// while clients that trust the authority go on. It is kept in a directory.
type ownCertificate struct {
	dir       string
	hosts     []string
	authority tls.Certificate

	mu        sync.Mutex
	cert, key []byte // PEM, the authority's certificate behind that of the server
	renewAt   time.Time
	listeners []dynamiccertificates.Listener
}

var (
	_ dynamiccertificates.CertKeyContentProvider = (*ownCertificate)(nil)
	_ dynamiccertificates.ControllerRunner       = (*ownCertificate)(nil)
)

// newOwnCertificate returns a certificate for the hosts: that in dir if it is good
// for all of them and for a while, else a new one. It is signed by the authority that
// find returns.
func newOwnCertificate(dir string, hosts []string, find func(certFile, keyFile string) (tls.Certificate, error)) (*ownCertificate, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of the serving certificate: %w; choose one that can be made with --cert-dir", err)
	}
	o := &ownCertificate{dir: dir, hosts: hosts}
	var err error
	if o.authority, err = find(filepath.Join(dir, "apiserver-ca.crt"), filepath.Join(dir, "apiserver-ca.key")); err != nil {
		return nil, err
	}
	if !o.load() {
		err = o.renew()
	}
	return o, err
}

// ca is the certificate of the authority, in PEM.
func (o *ownCertificate) ca() []byte { return encodeCertificate(o.authority.Certificate[0]) }

func (o *ownCertificate) files() (cert, key string) {
	return filepath.Join(o.dir, "apiserver.crt"), filepath.Join(o.dir, "apiserver.key")
}

// load reads the certificate from the directory, if that has one that will do. What
// it has else can be made again, so that nothing is wrong with it.
func (o *ownCertificate) load() bool {
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

// renew makes a new certificate and keeps it.
func (o *ownCertificate) renew() error {
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
	cert, key, err := issue(template, &o.authority)
	if err != nil {
		return err
	}
	cert = append(cert, o.ca()...)
	certFile, keyFile := o.files()
	if err := keepPair(certFile, cert, keyFile, key); err != nil {
		return err
	}
	o.set(cert, key, template.NotAfter)
	return nil
}

func (o *ownCertificate) set(cert, key []byte, notAfter time.Time) {
	o.mu.Lock()
	o.cert, o.key, o.renewAt = cert, key, notAfter.Add(-renewBefore)
	listeners := o.listeners
	o.mu.Unlock()
	for _, l := range listeners {
		l.Enqueue()
	}
}

// Name implements [dynamiccertificates.CertKeyContentProvider].
func (o *ownCertificate) Name() string { return "serving" }

// CurrentCertKeyContent implements [dynamiccertificates.CertKeyContentProvider].
func (o *ownCertificate) CurrentCertKeyContent() (cert, key []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.cert, o.key
}

// AddListener implements [dynamiccertificates.CertKeyContentProvider].
func (o *ownCertificate) AddListener(l dynamiccertificates.Listener) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.listeners = append(o.listeners, l)
}

// RunOnce implements [dynamiccertificates.ControllerRunner].
func (o *ownCertificate) RunOnce(context.Context) error { return nil }

// Run implements [dynamiccertificates.ControllerRunner]: it renews the certificate
// in time.
func (o *ownCertificate) Run(ctx context.Context, _ int) {
	tick := time.NewTicker(renewCheck) // rather than a timer: machines sleep, and clocks are set
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
			klog.FromContext(ctx).Error(err, "Serving certificate not renewed; trying again")
			continue
		}
		klog.FromContext(ctx).Info("Serving certificate renewed")
	}
}

// loadAuthority returns the authority in the files, which it makes if there is none
// or its time is nearly over.
func loadAuthority(certFile, keyFile string) (tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err == nil && time.Until(pair.Leaf.NotAfter) > authorityRenew {
		return pair, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return pair, fmt.Errorf("read the authority of the serving certificate: %w; remove %s and %s to have a new one made", err, certFile, keyFile)
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

// makeAuthority returns the certificate of a new authority, and its key, in PEM.
func makeAuthority() (cert, key []byte, err error) {
	return issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "kcp-ca"}, NotAfter: time.Now().Add(authorityLife),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}, nil)
}

// issue returns a certificate like the template, and its key, in PEM. Without an
// authority it signs itself. The key is an elliptic curve one: finding an RSA key
// would take most of a start.
func issue(template *x509.Certificate, authority *tls.Certificate) (cert, key []byte, err error) {
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

// keepPair writes a certificate and its key. Each file is whole at any time.
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
			return fmt.Errorf("keep the serving certificate: %w", err)
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
