package server_test

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"math/big"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"gopkg.in/go-jose/go-jose.v2"

	"github.com/unforked/kcp/internal/server"
)

// An issuer is an identity provider that may lie: its valid key is among other keys. The source of
// distributed claims at /claims names the issuer at /other, which is valid.
type issuer struct {
	*provider
	others  []jose.JSONWebKey
	follows atomic.Int32 // requests to /other
}

func newIssuer(t *testing.T, key *rsa.PrivateKey) *issuer {
	i := &issuer{provider: &provider{key: key}}
	mux := http.NewServeMux()
	discovery := func(at string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			if at != "" {
				i.follows.Add(1)
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"issuer": i.URL + at, "jwks_uri": i.URL + "/keys"})
		}
	}
	mux.HandleFunc("GET /.well-known/openid-configuration", discovery(""))
	mux.HandleFunc("GET /other/.well-known/openid-configuration", discovery("/other"))
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		valid := jose.JSONWebKey{Key: i.key.Public(), KeyID: "one", Use: "sig", Algorithm: string(jose.RS256)}
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: append([]jose.JSONWebKey{valid}, i.others...)})
	})
	mux.HandleFunc("GET /claims", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(i.token(t, map[string]any{"iss": i.URL + "/other", "groups": []string{"team"}})))
	})
	i.Server = httptest.NewTLSServer(mux)
	t.Cleanup(i.Close)
	return i
}

// The documents of an issuer are bounded, as their keys are tried before any limit of requests
// applies. Issuers that its tokens name are not followed.
func TestIssuersThatLie(t *testing.T) {
	t.Parallel()
	s := startConfigured(t, func(c *server.Config) { c.EgressAllow = loopback() })
	parent, key := s.tenant(t), must(rsa.GenerateKey(rand.Reader, 2048))(t)
	large := jose.JSONWebKey{KeyID: "one", Use: "sig", Algorithm: string(jose.RS256), Key: &rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), 40_000, 1), E: 65537}}
	for name, lie := range map[string]struct {
		tell   func(*issuer)
		claims func(*issuer) map[string]any
	}{
		"":          {},
		"many-keys": {tell: func(i *issuer) { i.others = make([]jose.JSONWebKey, 100); fill(i.others, key) }},
		"large-key": {tell: func(i *issuer) { i.others = []jose.JSONWebKey{large} }},
		"distributed": {claims: func(i *issuer) map[string]any {
			return map[string]any{"_claim_names": map[string]string{"groups": "there"}, "_claim_sources": map[string]any{"there": map[string]string{"endpoint": i.URL + "/claims"}}}
		}},
	} {
		i := newIssuer(t, key)
		var claims map[string]any
		if lie.tell != nil {
			lie.tell(i)
		}
		if lie.claims != nil {
			claims = lie.claims(i)
		}
		parent.authenticating("t"+name, authentication("a"+name, i.jwt()))
		c := parent.workspaceKnowing("w"+name, "t"+name)
		want := http.StatusUnauthorized
		if name == "" {
			want = http.StatusForbidden // authenticated, without rights
		}
		for range 2 {
			if got := c.visitor(name, i.token(t, claims)).send("GET", c.path("/api"), ""); got.code != want {
				t.Errorf("%q: %d %s", name, got.code, got.body)
			}
		}
		if n := i.follows.Load(); n != 0 {
			t.Errorf("%q: %d issuers in tokens were followed", name, n)
		}
	}
}

func fill(keys []jose.JSONWebKey, key *rsa.PrivateKey) {
	for n := range keys {
		keys[n] = jose.JSONWebKey{Key: key.Public(), KeyID: "two", Use: "sig", Algorithm: string(jose.RS256)}
	}
}
