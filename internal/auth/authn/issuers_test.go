package authn

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/unforked/kcp/internal/auth/authtest"
	"github.com/unforked/kcp/internal/cluster"
)

type identity struct {
	Name   string
	Groups []string
}

// known returns the user of a token in a cluster, nobody if the token is refused.
func (a *Authenticators) known(t *testing.T, c cluster.Name, header http.Header) (identity, error) {
	t.Helper()
	r, ok, err := a.AuthenticateRequest((&http.Request{Header: header}).WithContext(authtest.In(c)))
	if !ok || err != nil {
		return identity{}, err
	}
	return identity{r.User.GetName(), r.User.GetGroups()}, nil
}

// await waits until the user of a token is as wanted.
func (a *Authenticators) await(t *testing.T, token string, want identity) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		got, err := a.known(t, "aa", withToken(token))
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

// authenticators returns the authenticators for these options, with service accounts.
func authenticators(t *testing.T, change func(*kubeoptions.BuiltInAuthenticationOptions)) *Authenticators {
	t.Helper()
	a, err := NewAuthenticators(Authentication{ServiceAccounts: newAccounts(t, newObjects().options()), Options: options(change)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

func TestIdentityProviderByFlags(t *testing.T) {
	t.Parallel()
	p, other := newIdentityProvider(t), newIdentityProvider(t)
	caFile := authtest.WriteFile(t, "ca.crt", authtest.CAOf(p.Server))
	flags := func(more func(*kubeoptions.OIDCAuthenticationOptions)) *Authenticators {
		return authenticators(t, func(o *kubeoptions.BuiltInAuthenticationOptions) {
			o.OIDC.IssuerURL, o.OIDC.ClientID, o.OIDC.CAFile = p.URL, "kcp", caFile
			o.OIDC.GroupsClaim = "groups"
			more(o.OIDC)
		})
	}
	plain := flags(func(*kubeoptions.OIDCAuthenticationOptions) {})
	prefixed := flags(func(o *kubeoptions.OIDCAuthenticationOptions) {
		o.UsernamePrefix, o.GroupsPrefix, o.RequiredClaims = "oidc:", "oidc:", map[string]string{"tenant": "acme"}
	})
	bare := flags(func(o *kubeoptions.OIDCAuthenticationOptions) { o.UsernamePrefix, o.UsernameClaim = "-", "name" })
	everybody := []string{"system:authenticated"}
	for _, a := range []*Authenticators{plain, prefixed} { // keys are fetched in the background
		a.await(t, p.token(t, map[string]any{"sub": "x", "tenant": "acme"}), identity{map[*Authenticators]string{plain: p.URL + "#x", prefixed: "oidc:x"}[a], everybody})
	}
	bare.await(t, p.token(t, map[string]any{"name": "x"}), identity{"x", everybody})

	past := time.Now().Add(-time.Hour).Unix()
	for name, tt := range map[string]struct {
		by    *Authenticators
		token string
		want  identity // nobody: 401
	}{
		"user and groups":             {plain, p.token(t, map[string]any{"sub": "alice", "groups": []string{"dev", "ops"}}), identity{p.URL + "#alice", []string{"dev", "ops", "system:authenticated"}}},
		"prefixes":                    {prefixed, p.token(t, map[string]any{"sub": "alice", "groups": []string{"dev"}, "tenant": "acme"}), identity{"oidc:alice", []string{"oidc:dev", "system:authenticated"}}},
		"without a required claim":    {prefixed, p.token(t, map[string]any{"sub": "alice"}), identity{}},
		"with another required claim": {prefixed, p.token(t, map[string]any{"sub": "alice", "tenant": "evil"}), identity{}},
		"no prefix":                   {bare, p.token(t, map[string]any{"name": "alice"}), identity{"alice", everybody}},
		"another claim is missing":    {bare, p.token(t, nil), identity{}},
		"expired":                     {plain, p.token(t, map[string]any{"exp": past}), identity{}},
		"not yet valid":               {plain, p.token(t, map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}), identity{}},
		"for another audience":        {plain, p.token(t, map[string]any{"aud": "shop"}), identity{}},
		"for no audience":             {plain, p.token(t, map[string]any{"aud": nil}), identity{}},
		"for two audiences":           {plain, p.token(t, map[string]any{"sub": "alice", "aud": []string{"shop", "kcp"}}), identity{p.URL + "#alice", everybody}},
		"of another issuer":           {plain, other.token(t, nil), identity{}},
		"in the name of the issuer":   {plain, other.token(t, map[string]any{"iss": p.URL}), identity{}},
		"as if of the server":         {plain, p.token(t, map[string]any{"iss": DefaultIssuer}), identity{}},
		// Identity providers cannot set names that have a meaning for the server.
		"system:masters":                    {plain, p.token(t, map[string]any{"sub": "eve", "groups": []string{"system:masters", "dev", "system:kcp:admin", "system:serviceaccounts"}}), identity{p.URL + "#eve", []string{"dev", "system:authenticated"}}},
		"system:masters, prefixed":          {prefixed, p.token(t, map[string]any{"sub": "eve", "groups": []string{"system:masters"}, "tenant": "acme"}), identity{"oidc:eve", []string{"oidc:system:masters", "system:authenticated"}}},
		"a reserved name":                   {bare, p.token(t, map[string]any{"name": "system:kube-controller-manager"}), identity{}},
		"a service account":                 {bare, p.token(t, map[string]any{"name": "system:serviceaccount:default:robot"}), identity{}},
		"a service account from elsewhere":  {bare, p.token(t, map[string]any{"name": "system:kcp:serviceaccount:aa:default:robot"}), identity{}},
		"one that says which cluster":       {bare, p.token(t, map[string]any{"name": "system:serviceaccount:default:robot", "kubernetes.io": map[string]any{"clusterName": "aa"}}), identity{}},
		"an issuer's user that looks local": {plain, p.token(t, map[string]any{"sub": "system:serviceaccount:default:robot"}), identity{p.URL + "#system:serviceaccount:default:robot", everybody}},
	} {
		for _, c := range []cluster.Name{"aa", "bb"} {
			got, err := tt.by.known(t, c, withToken(tt.token))
			if diff := cmp.Diff(tt.want, got); diff != "" || (err == nil) != (got.Name != "") {
				t.Errorf("%s in %s: %v\n%s", name, c, err, diff)
			}
		}
	}

	old := p.token(t, map[string]any{"sub": "alice"})
	p.rotate(t, "two")
	if got, err := plain.known(t, "aa", withToken(p.token(t, map[string]any{"sub": "alice"}))); got.Name != p.URL+"#alice" {
		t.Errorf("with a new key: %v, %v", got, err)
	}
	plain.await(t, old, identity{}) // the key is no longer published, and forgotten a moment later
	forged := p.token(t, nil)
	for _, token := range []string{forged[:len(forged)-4] + "AAAA", forged + "x", strings.ReplaceAll(forged, ".", ""), "." + forged} {
		if got, err := plain.known(t, "aa", withToken(token)); err == nil {
			t.Errorf("forged: %v", got)
		}
	}
}

// providersFile is an AuthenticationConfiguration for providers. The names of their users have
// the prefixes p0:, p1: and so on; groups have none.
func providersFile(more string, providers ...*identityProvider) []byte {
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
`, p.URL, strings.ReplaceAll(strings.TrimSpace(string(authtest.CAOf(p.Server))), "\n", "\n      "), i)
	}
	return []byte(text)
}

func TestIdentityProvidersByFile(t *testing.T) {
	t.Parallel()
	first, second, third := newIdentityProvider(t), newIdentityProvider(t), newIdentityProvider(t)
	path := authtest.WriteFile(t, "authentication.yaml", providersFile("", first, second))
	a := authenticators(t, func(o *kubeoptions.BuiltInAuthenticationOptions) { o.AuthenticationConfigFile = path })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); a.Run(ctx) }()
	everybody := []string{"system:authenticated"}
	token := func(p *identityProvider) string { return p.token(t, map[string]any{"sub": "alice"}) }
	a.await(t, token(first), identity{"p0:alice", everybody})
	a.await(t, token(second), identity{"p1:alice", everybody})
	if got, err := a.known(t, "aa", withToken(token(third))); err == nil {
		t.Errorf("of a provider that is not in the file: %v", got)
	}
	// With an empty prefix in the file, the provider may set all groups.
	if got, err := a.known(t, "aa", withToken(first.token(t, map[string]any{"sub": "boss", "groups": "system:kcp:admin"}))); !cmp.Equal(got, identity{"p0:boss", []string{"system:kcp:admin", "system:authenticated"}}) {
		t.Errorf("%v, %v", got, err)
	}

	authtest.ReplaceFile(t, path, []byte("this is no configuration"))
	authtest.ReplaceFile(t, path, providersFile("", third, second))
	a.await(t, token(third), identity{"p0:alice", everybody})
	a.await(t, token(second), identity{"p1:alice", everybody})
	a.await(t, token(first), identity{})
	cancel()
	<-ended
	for name, broken := range map[string][]byte{
		"nothing":                nil,
		"another kind":           []byte("apiVersion: v1\nkind: ConfigMap\n"),
		"an unknown field":       append(providersFile("", first), "x: y\n"...),
		"a provider twice":       providersFile("", first, first),
		"other anonymous access": providersFile("anonymous: {enabled: false}\n", first),
	} {
		authtest.ReplaceFile(t, path, broken)
		if changed, err := a.issuers.reload(t.Context()); changed || err == nil {
			t.Errorf("%s is taken over: %v", name, err)
		}
		a.await(t, token(third), identity{"p0:alice", everybody})
	}
}

// No mapping of claims to extra keys lets an identity provider create service accounts of any
// cluster.
func TestIdentityProviderMapsAccounts(t *testing.T) {
	t.Parallel()
	p := newIdentityProvider(t)
	config := strings.Replace(string(providersFile("", p)), `prefix: "p0:"`, `prefix: ""`, 1) +
		"    extra: [{key: authentication.kcp.io/cluster-name, valueExpression: claims.home}]\n"
	path := authtest.WriteFile(t, "authentication.yaml", []byte(config))
	a := authenticators(t, func(o *kubeoptions.BuiltInAuthenticationOptions) { o.AuthenticationConfigFile = path })
	a.await(t, p.token(t, map[string]any{"sub": "alice", "home": "aa"}), identity{"alice", []string{"system:authenticated"}})
	for _, name := range []string{"system:serviceaccount:ns:robot", "system:kcp:serviceaccount:aa:ns:robot"} {
		for _, c := range []cluster.Name{"aa", "bb", cluster.All, ""} {
			if got, err := a.known(t, c, withToken(p.token(t, map[string]any{"sub": name, "home": "aa"}))); err == nil {
				t.Errorf("%s in %q: %v", name, c, got)
			}
		}
	}
}

// An identity provider that does not answer is not used, and does not delay other users.
func TestIdentityProviderThatIsDown(t *testing.T) {
	t.Parallel()
	up, down := newIdentityProvider(t), newIdentityProvider(t)
	path := authtest.WriteFile(t, "authentication.yaml", providersFile("", up))
	a := authenticators(t, func(o *kubeoptions.BuiltInAuthenticationOptions) { o.AuthenticationConfigFile = path })
	alice := identity{"p0:alice", []string{"system:authenticated"}}
	a.await(t, up.token(t, map[string]any{"sub": "alice"}), alice)
	token := down.token(t, nil)
	config := providersFile("", down)
	down.Close()
	authtest.ReplaceFile(t, path, config)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if changed, err := a.issuers.reload(ctx); changed || err == nil {
		t.Errorf("taken over: %v, %v", changed, err)
	}
	a.await(t, up.token(t, map[string]any{"sub": "alice"}), alice)
	if got, err := a.known(t, "aa", withToken(token)); err == nil {
		t.Errorf("%v", got)
	}
	if changed, err := a.issuers.reload(ctx); changed || err == nil {
		t.Errorf("it is not tried again: %v, %v", changed, err)
	}
	// At first the token has no user, until the provider answers.
	late := authenticators(t, func(o *kubeoptions.BuiltInAuthenticationOptions) { o.AuthenticationConfigFile = path })
	if got, err := late.known(t, "aa", withToken(token)); err == nil {
		t.Errorf("%v", got)
	}
}

func TestAnonymousByFile(t *testing.T) {
	t.Parallel()
	path := authtest.WriteFile(t, "authentication.yaml", providersFile("anonymous: {enabled: true, conditions: [{path: /livez}]}\n"))
	a := authenticators(t, func(o *kubeoptions.BuiltInAuthenticationOptions) { o.AuthenticationConfigFile = path })
	for at, want := range map[string]bool{"/livez": true, "/readyz": false, "/api/v1/namespaces": false, "/livez/ping": false} {
		req, err := http.NewRequestWithContext(authtest.In("aa"), http.MethodGet, "https://kcp"+at, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok, err := a.AuthenticateRequest(req); ok != want || err != nil {
			t.Errorf("%s: %v, %v", at, ok, err)
		}
	}
}

// Closed authenticators leave no goroutines.
func TestAuthenticatorsEnd(t *testing.T) {
	p := newIdentityProvider(t)
	config := providersFile("", p)
	p.Close() // so that its keys are asked for again and again
	path := filepath.Join(t.TempDir(), "authentication.yaml")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		a, err := NewAuthenticators(Authentication{Options: options(func(o *kubeoptions.BuiltInAuthenticationOptions) { o.AuthenticationConfigFile = path })})
		if err != nil {
			t.Fatal(err)
		}
		a.Close() // the bubble fails if anything runs on
	})
}
