package authn

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"testing"
	"time"

	"github.com/unforked/kcp/internal/cluster"
)

// Certificates end with their cluster: one that comes back under its name is another one.
func TestClientCertificateOfAnEarlierCluster(t *testing.T) {
	begun, exists := time.Now(), true
	a := newAuthority(t, time.Hour)
	clients := a.clients(func(cluster.Name) (time.Time, bool) { return begun, exists })
	issued, err := clients.Issue("home", a.request(t, "jane"), 2*time.Hour)
	certificate := parsed(t, issued, err)
	if certificate.NotAfter.After(a.certificate.Leaf.NotAfter) {
		t.Error("the certificate outlives its authority")
	}
	known := func(c cluster.Name) bool {
		req := (&http.Request{TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate}}}).WithContext(cluster.With(t.Context(), c))
		_, ok, err := users{clients}.AuthenticateRequest(req)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if !known("home") || known("other") || known(cluster.All) {
		t.Errorf("in its cluster: %t, in another one: %t, in all: %t", known("home"), known("other"), known(cluster.All))
	}
	exists = false
	if known("home") {
		t.Error("known in a cluster that is gone")
	}
	begun, exists = begun.Add(time.Minute), true
	if known("home") {
		t.Error("known in a later cluster of the same name")
	}
}

// An authority signs client certificates.
type authority struct {
	key         *ecdsa.PrivateKey
	certificate tls.Certificate
}

// newAuthority returns an authority whose certificate is valid for a time.
func newAuthority(t *testing.T, life time.Duration) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(life),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{key, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}}
}

// clients returns client certificates that the authority signs.
func (a authority) clients(begun func(cluster.Name) (time.Time, bool)) *ClientCertificates {
	clients := NewClientCertificates(begun)
	clients.SetAuthorities(a.certificate, encodeCertificate(a.certificate.Certificate[0]))
	return clients
}

// request returns a certificate request.
func (a authority) request(t *testing.T, name string, groups ...string) []byte {
	t.Helper()
	text, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name, Organization: groups}}, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: text})
}

// parsed returns a certificate that was issued without an error.
func parsed(t *testing.T, issued []byte, err error) *x509.Certificate {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(issued)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}
