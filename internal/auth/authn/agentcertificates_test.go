package authn

import (
	"crypto/tls"
	"crypto/x509"
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
	begun := time.Now()
	a := newAuthority(t, 48*time.Hour)
	clients := a.clients(func(cluster.Name) (time.Time, bool) { return begun, true })
	if _, err := clients.Issue("home", a.request(t, AgentPrefix+"x"), time.Hour); err == nil {
		t.Error("a tenant gets the certificate of an agent")
	}
	issued, err := clients.IssueAgent("home", "syncer:east:1", a.request(t, "admin", user.SystemPrivilegedGroup), time.Hour)
	certificate := parsed(t, issued, err)
	if certificate.NotAfter.After(time.Now().Add(time.Hour + time.Minute)) {
		t.Errorf("valid until %s", certificate.NotAfter)
	}
	all, err := NewAuthenticators(Authentication{Clients: clients})
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	for c, known := range map[cluster.Name]bool{"home": true, "other": false, "root": false} {
		req := (&http.Request{TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate}}}).WithContext(cluster.With(t.Context(), c))
		resp, ok, err := all.AuthenticateRequest(req)
		if err != nil || !ok {
			t.Fatalf("in %s: %v, %v", c, ok, err)
		}
		u := resp.User
		if !known {
			if u.GetName() != user.Anonymous {
				t.Errorf("in %s, the agent is %s", c, u.GetName())
			}
			continue
		}
		if u.GetName() != AgentPrefix+"syncer:east:1" || !slices.Equal(u.GetGroups(), []string{auth.Agents}) {
			t.Errorf("the agent is %s in %v", u.GetName(), u.GetGroups())
		}
		if scopes := u.GetExtra()[auth.ScopesKey]; !slices.Equal(scopes, []string{auth.ScopePrefix + "home"}) {
			t.Errorf("its scopes are %v", scopes)
		}
	}
}
