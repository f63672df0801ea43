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
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	begun, exists := time.Now(), true
	clients := NewClientCertificates(func(cluster.Name) (time.Time, bool) { return begun, exists })
	clients.SetAuthorities(tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, encoded(der))
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	issued, err := clients.Issue("home", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}), 2*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(issued)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if certificate.NotAfter.After(leaf.NotAfter) {
		t.Error("the certificate outlives its authority")
	}
	known := func(c cluster.Name) bool {
		req := (&http.Request{TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate}}}).WithContext(cluster.With(t.Context(), c))
		_, ok, err := clients.AuthenticateRequest(req)
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
