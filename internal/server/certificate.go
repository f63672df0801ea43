package server

import (
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
	"time"
)

const (
	certificateLife = 365 * 24 * time.Hour
	renewBefore     = 30 * 24 * time.Hour
)

// servingCertificate returns a certificate for the hosts, and its key, in PEM. It is kept in dir, and made anew when it is about to end or lacks a host.
// The key is an elliptic curve one: finding an RSA key would take most of a start.
func servingCertificate(dir string, hosts []string) (cert, key []byte, err error) {
	certFile, keyFile := filepath.Join(dir, "apiserver.crt"), filepath.Join(dir, "apiserver.key")
	if cert, err = os.ReadFile(certFile); err == nil {
		key, err = os.ReadFile(keyFile)
	}
	var pair tls.Certificate
	if err == nil {
		pair, err = tls.X509KeyPair(cert, key)
	}
	if err == nil && covers(pair.Leaf, hosts) {
		return cert, key, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("read the serving certificate: %w; remove %s and %s to have a new one made", err, certFile, keyFile)
	}
	if cert, key, err = makeCertificate(hosts, time.Now()); err != nil {
		return nil, nil, err
	}
	for _, f := range []struct {
		name string
		data []byte
		mode fs.FileMode
	}{{keyFile, key, 0o600}, {certFile, cert, 0o644}} {
		if err := os.WriteFile(f.name, f.data, f.mode); err != nil {
			return nil, nil, fmt.Errorf("keep the serving certificate: %w", err)
		}
	}
	return cert, key, nil
}

func covers(c *x509.Certificate, hosts []string) bool {
	if c == nil || time.Until(c.NotAfter) < renewBefore {
		return false
	}
	for _, h := range hosts {
		if c.VerifyHostname(h) != nil {
			return false
		}
	}
	return true
}

// makeCertificate returns a certificate that signs itself, and its key, in PEM.
func makeCertificate(hosts []string, now time.Time) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "kcp"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(certificateLife),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA:        true, BasicConstraintsValid: true,
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return nil, nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), nil
}
