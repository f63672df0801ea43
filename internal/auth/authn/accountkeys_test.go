package authn

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/emicklei/go-restful/v3"
	"github.com/google/go-cmp/cmp"
	"gopkg.in/go-jose/go-jose.v2"
	"k8s.io/client-go/util/keyutil"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/unforked/kcp/internal/auth/authtest"
)

// keyFile writes a new key pair or its public key.
func keyFile(t *testing.T, key crypto.Signer, public bool) string {
	t.Helper()
	data, err := keyutil.MarshalPrivateKeyToPEM(key)
	if public {
		var der []byte
		der, err = x509.MarshalPKIXPublicKey(key.Public())
		data = pem.EncodeToMemory(&pem.Block{Type: keyutil.PublicKeyBlockType, Bytes: der})
	}
	if err != nil {
		t.Fatal(err)
	}
	return authtest.WriteFile(t, "key.pem", data)
}

func newKeys(t *testing.T) (crypto.Signer, crypto.Signer) {
	t.Helper()
	a, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	b, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

// New tokens have the first issuer. Tokens of all issuers and keys are accepted.
func TestIssuersAndKeysOfServiceAccounts(t *testing.T) {
	t.Parallel()
	first, second := newKeys(t)
	stranger, _ := newKeys(t)
	o := newObjects()
	robot := o.account("aa", "ns", "robot", "u1")
	signed := func(key crypto.Signer, issuer string) string {
		by := o.options()
		by.Key, by.Issuers = key, []string{issuer}
		return boundToken(t, newAccounts(t, by), "aa", robot, nil, 3600)
	}
	by := o.options()
	by.Key = first
	by, err := by.WithFlags(options(func(f *kubeoptions.BuiltInAuthenticationOptions) {
		f.APIAudiences = []string{DefaultIssuer}
		f.ServiceAccounts.Issuers = []string{"https://new", "https://old"}
		f.ServiceAccounts.KeyFiles = []string{keyFile(t, second, true), keyFile(t, first, false)}
	}))
	if err != nil {
		t.Fatal(err)
	}
	s := newAccounts(t, by)
	if got := payload(t, boundToken(t, s, "aa", robot, nil, 3600))["iss"]; got != "https://new" {
		t.Errorf("new tokens are of %v", got)
	}
	for name, tt := range map[string]struct {
		token string
		want  bool
	}{
		"first key and issuer":   {signed(first, "https://new"), true},
		"second key and issuer":  {signed(second, "https://old"), true},
		"another issuer":         {signed(first, "https://other"), false},
		"the default issuer":     {signed(first, DefaultIssuer), false},
		"another key":            {signed(stranger, "https://new"), false},
		"the issuer of secrets'": {signed(first, serviceaccount.LegacyIssuer), false},
	} {
		if _, ok, err := s.AuthenticateToken(authtest.In("aa"), tt.token); ok != tt.want || ok && err != nil {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
}

// A token has the requested audiences. It is accepted if one is an audience of the server.
func TestAudiencesOfServiceAccounts(t *testing.T) {
	t.Parallel()
	o := newObjects()
	robot := o.account("aa", "ns", "robot", "u1")
	accounts := func(audiences ...string) *ServiceAccounts {
		options, err := o.options().WithFlags(options(func(f *kubeoptions.BuiltInAuthenticationOptions) {
			f.APIAudiences, f.ServiceAccounts.Issuers = audiences, []string{"https://a", "https://b"}
		}))
		if err != nil {
			t.Fatal(err)
		}
		options.Key, _ = newKeys(t)
		return newAccounts(t, options)
	}
	if diff := cmp.Diff([]string{"https://a", "https://b"}, []string(accounts().Audiences())); diff != "" {
		t.Error("without --api-audiences they are the issuers:\n", diff)
	}
	for want, s := range map[bool]*ServiceAccounts{true: accounts("x", DefaultIssuer), false: accounts("x", "y")} {
		token := boundToken(t, s, "aa", robot, nil, 3600) // for DefaultIssuer
		if _, ok, err := s.AuthenticateToken(authtest.In("aa"), token); ok != want {
			t.Errorf("the server's audiences are %v: %v, %v", s.Audiences(), ok, err)
		}
	}
}

// Without lookup, tokens in secrets stay valid without their secret and account; others do not.
func TestServiceAccountsWithoutLookup(t *testing.T) {
	t.Parallel()
	for _, lookup := range []bool{true, false} {
		o := newObjects()
		options, err := o.options().WithFlags(options(func(f *kubeoptions.BuiltInAuthenticationOptions) { f.ServiceAccounts.Lookup = lookup }))
		if err != nil {
			t.Fatal(err)
		}
		s := newAccounts(t, options)
		robot, secret := o.account("aa", "ns", "robot", "u1"), o.secret("aa", "ns", "t", "u2")
		bound, legacy := boundToken(t, s, "aa", robot, nil, 3600), legacyToken(t, s, "aa", robot, secret)
		clear(o.accounts)
		clear(o.secrets)
		if _, ok, _ := s.AuthenticateToken(authtest.In("aa"), bound); ok {
			t.Errorf("lookup %v: a token outlives its account", lookup)
		}
		r, ok, _ := s.AuthenticateToken(authtest.In("bb"), legacy)
		if ok == lookup {
			t.Errorf("lookup %v: the token of a secret that is gone: %v", lookup, ok)
		}
		if ok && r.User.GetName() != "system:kcp:serviceaccount:aa:ns:robot" {
			t.Errorf("elsewhere it is %s", r.User.GetName())
		}
	}
}

func TestDiscoveryOfTheIssuer(t *testing.T) {
	t.Parallel()
	first, second := newKeys(t)
	s := newAccounts(t, ServiceAccountOptions{Key: first, VerifyKeys: []any{second.Public()}, Issuers: []string{"https://issuer.example"}})
	for uri, want := range map[string]string{"": "https://kcp.example:6443/openid/v1/jwks", "https://keys.example/jwks": "https://keys.example/jwks"} {
		discovery, err := s.Discovery(uri, "kcp.example:6443")
		if err != nil {
			t.Fatal(err)
		}
		container := restful.NewContainer()
		discovery.Install(container)
		get := func(path string, into any) {
			w := httptest.NewRecorder()
			container.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
				t.Errorf("%s: %d %s", path, w.Code, w.Body)
			}
		}
		var config struct {
			Issuer string `json:"issuer"`
			Keys   string `json:"jwks_uri"`
		}
		get("/.well-known/openid-configuration", &config)
		if config.Issuer != "https://issuer.example" || config.Keys != want {
			t.Errorf("%+v", config)
		}
		var keys jose.JSONWebKeySet
		get("/openid/v1/jwks", &keys)
		var got []crypto.PublicKey
		for _, k := range keys.Keys {
			got = append(got, k.Key)
		}
		if diff := cmp.Diff([]crypto.PublicKey{first.Public(), second.Public()}, got); diff != "" {
			t.Error(diff)
		}
	}
	if _, err := newAccounts(t, ServiceAccountOptions{Issuers: []string{"me"}}).Discovery("", "kcp"); err == nil {
		t.Error("an issuer that is no URL can be discovered")
	}
}

func TestServiceAccountFlagsThatAreWrong(t *testing.T) {
	t.Parallel()
	broken := authtest.WriteFile(t, "broken.pem", []byte("no key"))
	key, _ := newKeys(t)
	type accounts = *kubeoptions.ServiceAccountAuthenticationOptions
	for want, change := range map[string]func(accounts){
		"--service-account-key-file /nope":       func(a accounts) { a.KeyFiles = []string{"/nope"} },
		"--service-account-key-file " + broken:   func(a accounts) { a.KeyFiles = []string{keyFile(t, key, true), broken} },
		"--service-account-issuer is empty":      func(a accounts) { a.Issuers = []string{"https://a", ""} },
		"is given twice":                         func(a accounts) { a.Issuers = []string{"https://a", "https://a"} },
		"is no URL":                              func(a accounts) { a.Issuers = []string{"https://a b:%"} },
		"is reserved for the tokens in secrets":  func(a accounts) { a.Issuers = []string{serviceaccount.LegacyIssuer} },
		"--service-account-max-token-expiration": func(a accounts) { a.MaxExpiration = time.Minute },
		"is no https URL; use":                   func(a accounts) { a.JWKSURI = "http://x" },
		"cannot be discovered":                   func(a accounts) { a.JWKSURI, a.Issuers = "https://x", []string{"me"} },
	} {
		if _, err := (ServiceAccountOptions{}).WithFlags(options(func(f *kubeoptions.BuiltInAuthenticationOptions) { change(f.ServiceAccounts) })); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	if _, err := (ServiceAccountOptions{}).WithFlags(options(func(f *kubeoptions.BuiltInAuthenticationOptions) { f.APIAudiences = []string{""} })); err == nil || !strings.Contains(err.Error(), "--api-audiences") {
		t.Errorf("an empty audience: %v", err)
	}
}
