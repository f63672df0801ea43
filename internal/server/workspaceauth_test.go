package server_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unforked/kcp/internal/server"
)

var authentications = schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspaceauthenticationconfigurations"}

// A provider is a local identity provider.
type provider struct {
	*httptest.Server
	key   *rsa.PrivateKey
	asked atomic.Int32
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	p := &provider{key: must(rsa.GenerateKey(rand.Reader, 2048))(t)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		p.asked.Add(1)
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": p.URL, "jwks_uri": p.URL + "/keys"})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: p.key.Public(), KeyID: "one", Use: "sig", Algorithm: string(jose.RS256)}}})
	})
	p.Server = httptest.NewTLSServer(mux)
	t.Cleanup(p.Close)
	return p
}

func (p *provider) token(t *testing.T, claims map[string]any) string {
	t.Helper()
	all := map[string]any{"iss": p.URL, "aud": "app", "sub": "carol", "iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix()}
	for k, v := range claims {
		all[k] = v
	}
	signer := must(jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: p.key, KeyID: "one"}}, nil))(t)
	return must(jwt.Signed(signer).Claims(all).CompactSerialize())(t)
}

// jwt returns the configuration of the provider.
func (p *provider) jwt() map[string]any {
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Certificate().Raw}))
	return map[string]any{
		"issuer": map[string]any{"url": p.URL, "audiences": []any{"app"}, "certificateAuthority": ca},
		"claimMappings": map[string]any{
			"username": map[string]any{"claim": "sub", "prefix": ""},
			"groups":   map[string]any{"claim": "groups", "prefix": ""},
			"uid":      map[string]any{"claim": "sub"},
			"extra": []any{
				map[string]any{"key": "example.com/team", "valueExpression": "'blue'"},
				map[string]any{"key": "authentication.kcp.io/scopes", "valueExpression": "'cluster:root'"},
			},
		},
	}
}

func authentication(name string, jwts ...any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "WorkspaceAuthenticationConfiguration", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"jwt": jwts},
	}}
}

// authenticating creates a type whose workspaces accept the users of a provider.
func (c *tenant) authenticating(name string, configuration *unstructured.Unstructured) {
	c.t.Helper()
	if _, err := c.any.Resource(authentications).Create(c.t.Context(), configuration, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	wt := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "WorkspaceType", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"extend":                       map[string]any{"with": []any{map[string]any{"name": "universal", "path": "root"}}},
			"authenticationConfigurations": []any{map[string]any{"name": configuration.GetName()}},
		},
	}}
	if _, err := c.any.Resource(workspaceTypes).Create(c.t.Context(), wt, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *tenant) workspaceKnowing(name, ofType string) *tenant {
	c.t.Helper()
	ws := workspace(name)
	ws.Object["spec"] = map[string]any{"type": map[string]any{"name": ofType}}
	made := must(c.any.Resource(workspaces).Create(c.t.Context(), ws, metav1.CreateOptions{}))(c.t)
	return at(c.t, c.server, clusterOf(made), server.System())
}

func (c *tenant) review(token string, audiences ...string) authenticationv1.TokenReviewStatus {
	c.t.Helper()
	r := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences}}
	return must(c.kube.AuthenticationV1().TokenReviews().Create(context.WithoutCancel(c.t.Context()), r, metav1.CreateOptions{}))(c.t).Status
}

// A workspace accepts the users of its identity provider, except names and groups that are
// reserved for the server. Other workspaces do not.
func TestWorkspaceAuthentication(t *testing.T) {
	t.Parallel()
	s := startConfigured(t, func(c *server.Config) { c.EgressAllow = loopback() })
	parent, p := s.tenant(t), newProvider(t)
	parent.authenticating("known", authentication("oidc", p.jwt()))
	c, other, plain := parent.workspaceKnowing("one", "known"), parent.workspaceKnowing("two", "known"), parent.workspace("plain")
	token := p.token(t, map[string]any{"groups": []string{"team", "system:masters"}})
	got := c.review(token)
	want := authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: got.Audiences, User: authenticationv1.UserInfo{
		Username: "carol", UID: "carol", Groups: []string{"team", "system:authenticated"}, Extra: map[string]authenticationv1.ExtraValue{
			"example.com/team": {"blue"}, "authentication.kcp.io/scopes": {"cluster:" + string(c.name)}, "authentication.kcp.io/cluster-name": {string(c.name)},
		},
	}}
	if got.User.Extra["authentication.kubernetes.io/credential-id"] != nil {
		want.User.Extra["authentication.kubernetes.io/credential-id"] = got.User.Extra["authentication.kubernetes.io/credential-id"]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := c.review(token, "elsewhere"); got.Authenticated {
		t.Errorf("for an audience that is not the server's it is %+v", got)
	}
	c.allow("carol")
	carol := c.visitor("carol", token)
	if got := carol.send("GET", c.path("/api/v1/secrets"), ""); !got.ok() {
		t.Errorf("in the workspace: %d %s", got.code, got.body)
	}
	for where, code := range map[string]int{other.path(""): http.StatusForbidden, plain.path(""): http.StatusUnauthorized, parent.path(""): http.StatusUnauthorized, "/clusters/root": http.StatusUnauthorized, "/clusters/*": http.StatusUnauthorized, "": http.StatusUnauthorized} {
		if got := carol.send("GET", where+"/api/v1/secrets", ""); got.code != code {
			t.Errorf("at %s: %d %s, want %d", where, got.code, got.body, code)
		}
	}
	for what, claims := range map[string]map[string]any{
		"a reserved name": {"sub": "system:admin"}, "an account": {"sub": "system:serviceaccount:default:owner"}, "another audience": {"aud": "other"}, "an end": {"exp": time.Now().Add(-time.Hour).Unix()},
		"another issuer": {"iss": "https://elsewhere"}, "an account abroad": {"sub": "system:kcp:serviceaccount:" + string(c.name) + ":default:owner"},
	} {
		if got := c.visitor(what, p.token(t, claims)).send("GET", c.path("/api/v1/namespaces"), ""); got.code != http.StatusUnauthorized {
			t.Errorf("a token with %s: %d %s", what, got.code, got.body)
		}
	}
	forged := strings.Split(token, ".")
	if got := c.visitor("forger", forged[0]+"."+forged[1]+"."+strings.Split(newProvider(t).token(t, nil), ".")[2]).send("GET", c.path("/api"), ""); got.code != http.StatusUnauthorized {
		t.Errorf("a forged token: %d", got.code)
	}
	if n := p.asked.Load(); n != 1 {
		t.Errorf("the provider was asked %d times, for two workspaces", n)
	}
	// A change of the configuration applies without delay.
	patch := fmt.Appendf(nil, `{"spec":{"jwt":[{"issuer":{"url":"%s/other","audiences":["app"]},"claimMappings":{"username":{"claim":"sub","prefix":""}}}]}}`, p.URL)
	if _, err := parent.any.Resource(authentications).Patch(t.Context(), "oidc", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitWho(token, "")
}

// userRules returns n different rules.
func userRules(n int) []any {
	all := make([]any, n)
	for i := range all {
		all[i] = map[string]any{"expression": fmt.Sprintf("user.username != '%d'", i), "message": "m"}
	}
	return all
}

// Invalid configurations are refused. Providers that cannot be called authenticate no users.
func TestHostileWorkspaceAuthentication(t *testing.T) {
	t.Parallel()
	s := startConfigured(t, func(c *server.Config) { c.EgressAllow = loopback() })
	parent, p := s.tenant(t), newProvider(t)
	change := func(path []string, to any) map[string]any {
		jwt := p.jwt()
		if to == nil {
			unstructured.RemoveNestedField(jwt, path...)
		} else if err := unstructured.SetNestedField(jwt, to, path...); err != nil {
			t.Fatal(err)
		}
		return jwt
	}
	for what, jwt := range map[string]any{
		"no https": change([]string{"issuer", "url"}, "http://x"), "no audience": change([]string{"issuer", "audiences"}, nil), "a claim and an expression": change([]string{"claimMappings", "username", "expression"}, "claims.sub"),
		"no name": change([]string{"claimMappings", "username"}, nil), "a bad expression": change([]string{"claimMappings", "username"}, map[string]any{"expression": "claims."}), "a bad authority": change([]string{"issuer", "certificateAuthority"}, "x"),
		"half a rule":      change([]string{"claimValidationRules"}, []any{map[string]any{"claim": "a"}}),
		"many expressions": change([]string{"userValidationRules"}, userRules(33)), "a long expression": change([]string{"userValidationRules"}, []any{map[string]any{"expression": "'" + strings.Repeat("x", 70_000) + "' == ''", "message": "m"}}),
		"a pattern of 12,000 instructions": change([]string{"claimMappings", "username"}, map[string]any{"expression": "claims.sub.find('" + strings.Repeat("[a-z]{1000}", 12) + "')"}),
		"a pattern from the token":         change([]string{"claimMappings", "username"}, map[string]any{"expression": "claims.sub.matches(claims.p) ? 'a' : 'b'"}),
		"a prefix of an expression":        change([]string{"claimMappings", "groups"}, map[string]any{"expression": "claims.g", "prefix": "x"}),
	} {
		_, err := parent.any.Resource(authentications).Create(t.Context(), authentication("bad", jwt), metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := parent.any.Resource(authentications).Create(t.Context(), authentication("bad", slices.Repeat([]any{p.jwt()}, 17)...), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("17 providers: %v", err)
	}
	wide := typed(t, "wide", "{authenticationConfigurations: ["+strings.Repeat("{name: self}, ", 17)+"]}")
	if _, err := parent.any.Resource(workspaceTypes).Create(t.Context(), wide, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("17 configurations: %v", err)
	}
	self := change([]string{"issuer", "url"}, s.url)
	parent.authenticating("self", authentication("self", self))
	c := parent.workspaceKnowing("one", "self")
	before := c.visitor("x", p.token(t, map[string]any{"iss": s.url}))
	if got := before.send("GET", c.path("/api"), ""); got.code != http.StatusUnauthorized {
		t.Errorf("the server as a provider: %d %s", got.code, got.body)
	}
	c.content("goes-on")
}
