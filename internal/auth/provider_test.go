package auth

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// An identityProvider is an identity provider on this machine, with its own certificate.
type identityProvider struct {
	*httptest.Server

	mu   sync.Mutex
	name string // of the key that signs
	keys map[string]*rsa.PrivateKey
}

func newIdentityProvider(t *testing.T) *identityProvider {
	p := &identityProvider{}
	p.rotate(t, "one")
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

// rotate replaces the key.
func (p *identityProvider) rotate(t *testing.T, name string) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.name, p.keys = name, map[string]*rsa.PrivateKey{name: key}
}

// token signs a token with these claims and the common ones.
func (p *identityProvider) token(t *testing.T, claims map[string]any) string {
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

// ca is the certificate of a server on this machine, in PEM.
func ca(s *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

func write(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// webhookFile is the kubeconfig of a webhook.
func webhookFile(t *testing.T, url string, ca []byte) string {
	t.Helper()
	c := clientcmdapi.NewConfig()
	c.Clusters["hook"] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: ca}
	c.Contexts["hook"] = &clientcmdapi.Context{Cluster: "hook"}
	c.CurrentContext = "hook"
	data, err := clientcmd.Write(*c)
	if err != nil {
		t.Fatal(err)
	}
	return write(t, "webhook.kubeconfig", data)
}
