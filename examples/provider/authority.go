package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"time"
)

// An authority signs certificates.
type authority struct {
	key  crypto.Signer
	cert *x509.Certificate
	pem  string
}

// loadAuthority reads the key and the certificate of an authority from a file. It creates them
// if there is no file.
func loadAuthority(file string) (*authority, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		if data, err = newAuthority(); err == nil {
			err = os.WriteFile(file, data, 0o600)
		}
	}
	if err != nil {
		return nil, err
	}
	keyBlock, rest := pem.Decode(data)
	certBlock, _ := pem.Decode(rest)
	if keyBlock == nil || certBlock == nil {
		return nil, fmt.Errorf("%s has no key followed by a certificate; delete it to get a new authority", file)
	}
	key, err := x509.ParseECPrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	return &authority{key, cert, string(pem.EncodeToMemory(certBlock))}, err
}

func newAuthority() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	template, err := certificate("certificates of example.com", 3650)
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	out := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})
	return append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})...), nil
}

// certificate returns a certificate that is valid for some days from now.
func certificate(name string, days int) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-time.Minute), NotAfter: now.AddDate(0, 0, days),
	}, err
}

// parse returns the public key of a request, if the request is signed with it.
func parse(request string) (crypto.PublicKey, error) {
	block, _ := pem.Decode([]byte(request))
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("spec.request is no certificate request in PEM; make one with openssl req -new")
	}
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("spec.request: %w", err)
	}
	if key, ok := parsed.PublicKey.(*rsa.PublicKey); ok && key.N.BitLen() > 4096 {
		return nil, errors.New("spec.request: RSA keys may have 4096 bits at most")
	}
	if err := parsed.CheckSignature(); err != nil {
		return nil, fmt.Errorf("spec.request is not signed with its key: %w", err)
	}
	return parsed.PublicKey, nil
}

// issue signs a certificate for a key.
func (a *authority) issue(key crypto.PublicKey, name string, days int) (*x509.Certificate, error) {
	template, err := certificate(name, days)
	if err != nil {
		return nil, err
	}
	template.DNSNames = []string{name}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key, a.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// issued returns the certificate in a status, if this authority issued it for the key and the
// name. It returns nil otherwise.
func (a *authority) issued(text string, key crypto.PublicKey, name string) *x509.Certificate {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil || cert.CheckSignatureFrom(a.cert) != nil || cert.VerifyHostname(name) != nil {
		return nil
	}
	if same, ok := cert.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !same.Equal(key) {
		return nil
	}
	return cert
}
