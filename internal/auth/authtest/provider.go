package authtest

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
)

// An IdentityProvider is an identity provider on this machine, with its own certificate.
type IdentityProvider struct {
	*httptest.Server

	mu   sync.Mutex
	name string // of the key that signs
	keys map[string]*rsa.PrivateKey
}

// NewIdentityProvider starts an identity provider. It is closed when the test ends.
func NewIdentityProvider(t *testing.T) *IdentityProvider {
	t.Helper()
	p := &IdentityProvider{}
	p.Rotate(t, "one")
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": p.URL, "jwks_uri": p.URL + "/keys"})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		var set jose.JSONWebKeySet
		for name, key := range p.keys {
			set.Keys = append(set.Keys, jose.JSONWebKey{Key: key.Public(), KeyID: name, Use: "sig", Algorithm: string(jose.RS256)})
		}
		_ = json.NewEncoder(w).Encode(set)
	})
	p.Server = httptest.NewTLSServer(mux)
	t.Cleanup(p.Close)
	return p
}

// Rotate replaces the key.
func (p *IdentityProvider) Rotate(t *testing.T, name string) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.name, p.keys = name, map[string]*rsa.PrivateKey{name: key}
}

// Token signs a token with these claims and the common ones.
func (p *IdentityProvider) Token(t *testing.T, claims map[string]any) string {
	t.Helper()
	all := map[string]any{"iss": p.URL, "aud": "kcp", "sub": "nobody", "iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix()}
	for k, v := range claims {
		all[k] = v
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: p.keys[p.name], KeyID: p.name}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(all).CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// ProvidersFile returns an AuthenticationConfiguration for providers. The names of their users have
// the prefixes p0:, p1: and so on; groups have none.
func ProvidersFile(more string, providers ...*IdentityProvider) []byte {
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n" + more
	if len(providers) > 0 {
		text += "jwt:\n"
	}
	for i, p := range providers {
		text += fmt.Sprintf(`- issuer:
    url: %s
    audiences: [kcp]
    certificateAuthority: |
      %s
  claimMappings:
    username: {claim: sub, prefix: "p%d:"}
    groups: {claim: groups, prefix: ""}
`, p.URL, strings.ReplaceAll(strings.TrimSpace(string(CAOf(p.Server))), "\n", "\n      "), i)
	}
	return []byte(text)
}

// Await waits until get returns want. Identity providers fetch their keys in the background.
func Await[T any](t *testing.T, want T, get func() (T, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		got, err := get()
		if cmp.Equal(got, want) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("got %v, %v; want %v", got, err, want)
		}
	}
}
