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
	"slices"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

// The certificate of an agent has the name that the server chose, in its cluster only, and no tenant
// gets such a name.
func TestAgentCertificate(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(48 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	clients := NewClientCertificates(func(cluster.Name) (time.Time, bool) { return begun, true })
	clients.SetAuthorities(tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, encoded(der))
	request := func(name string, groups ...string) []byte {
		text, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name, Organization: groups}}, key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: text})
	}
	if _, err := clients.Issue("home", request(AgentPrefix+"x"), time.Hour); err == nil {
		t.Error("a tenant gets the certificate of an agent")
	}
	issued, err := clients.IssueAgent("home", "syncer:east:1", request("admin", user.SystemPrivilegedGroup), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(issued)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if certificate.NotAfter.After(time.Now().Add(time.Hour + time.Minute)) {
		t.Errorf("valid until %s", certificate.NotAfter)
	}
	for c, known := range map[cluster.Name]bool{"home": true, "other": false, "root": false} {
		req := (&http.Request{TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate}}}).WithContext(cluster.With(t.Context(), c))
		resp, ok, err := clients.AuthenticateRequest(req)
		if err != nil || ok != known {
			t.Fatalf("in %s: known %v, %v", c, ok, err)
		}
		if !known {
			continue
		}
		u := resp.User
		if u.GetName() != AgentPrefix+"syncer:east:1" || slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) || slices.Contains(u.GetGroups(), user.AllAuthenticated) {
			t.Errorf("the agent is %s in %v", u.GetName(), u.GetGroups())
		}
		if scopes := u.GetExtra()[auth.ScopesKey]; !slices.Equal(scopes, []string{auth.ScopePrefix + "home"}) {
			t.Errorf("its scopes are %v", scopes)
		}
	}
}
