package issuers

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/unforked/kcp/internal/auth/authtest"
)

// ownIssuer is the issuer of the server's own tokens.
const ownIssuer = "https://own.example"

type identity struct {
	Name   string
	Groups []string
}

// known returns the user of a token, and an error if no provider accepts the token.
func (i *Providers) known(t *testing.T, token string) (identity, error) {
	t.Helper()
	r, ok, err := i.AuthenticateToken(t.Context(), token)
	switch {
	case err != nil:
		return identity{}, err
	case !ok:
		return identity{}, errors.New("no identity provider knows the token")
	}
	return identity{r.User.GetName(), r.User.GetGroups()}, nil
}

// await waits until the user of a token is as wanted.
func (i *Providers) await(t *testing.T, token string, want identity) {
	t.Helper()
	authtest.Await(t, want, func() (identity, error) { return i.known(t, token) })
}

// providers returns the started identity providers for these options.
func providers(t *testing.T, change func(*kubeoptions.BuiltInAuthenticationOptions)) *Providers {
	t.Helper()
	o := kubeoptions.NewBuiltInAuthenticationOptions().WithAnonymous().WithOIDC()
	change(o)
	p, err := NewProviders(o, []string{ownIssuer})
	if err == nil {
		err = p.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func TestIdentityProviderByFlags(t *testing.T) {
	t.Parallel()
	p, other := authtest.NewIdentityProvider(t), authtest.NewIdentityProvider(t)
	caFile := authtest.WriteFile(t, "ca.crt", authtest.CAOf(p.Server))
	flags := func(more func(*kubeoptions.OIDCAuthenticationOptions)) *Providers {
		return providers(t, func(o *kubeoptions.BuiltInAuthenticationOptions) {
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
	for _, a := range []*Providers{plain, prefixed} { // keys are fetched in the background
		a.await(t, p.Token(t, map[string]any{"sub": "x", "tenant": "acme"}), identity{Name: map[*Providers]string{plain: p.URL + "#x", prefixed: "oidc:x"}[a]})
	}
	bare.await(t, p.Token(t, map[string]any{"name": "x"}), identity{Name: "x"})

	past := time.Now().Add(-time.Hour).Unix()
	for name, tt := range map[string]struct {
		by    *Providers
		token string
		want  identity // nobody: refused
	}{
		"user and groups":             {plain, p.Token(t, map[string]any{"sub": "alice", "groups": []string{"dev", "ops"}}), identity{p.URL + "#alice", []string{"dev", "ops"}}},
		"prefixes":                    {prefixed, p.Token(t, map[string]any{"sub": "alice", "groups": []string{"dev"}, "tenant": "acme"}), identity{"oidc:alice", []string{"oidc:dev"}}},
		"without a required claim":    {prefixed, p.Token(t, map[string]any{"sub": "alice"}), identity{}},
		"with another required claim": {prefixed, p.Token(t, map[string]any{"sub": "alice", "tenant": "evil"}), identity{}},
		"no prefix":                   {bare, p.Token(t, map[string]any{"name": "alice"}), identity{Name: "alice"}},
		"another claim is missing":    {bare, p.Token(t, nil), identity{}},
		"expired":                     {plain, p.Token(t, map[string]any{"exp": past}), identity{}},
		"not yet valid":               {plain, p.Token(t, map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}), identity{}},
		"for another audience":        {plain, p.Token(t, map[string]any{"aud": "shop"}), identity{}},
		"for no audience":             {plain, p.Token(t, map[string]any{"aud": nil}), identity{}},
		"for two audiences":           {plain, p.Token(t, map[string]any{"sub": "alice", "aud": []string{"shop", "kcp"}}), identity{Name: p.URL + "#alice"}},
		"of another issuer":           {plain, other.Token(t, nil), identity{}},
		"in the name of the issuer":   {plain, other.Token(t, map[string]any{"iss": p.URL}), identity{}},
		"as if of the server":         {plain, p.Token(t, map[string]any{"iss": ownIssuer}), identity{}},
		// Identity providers cannot set names that have a meaning for the server.
		"system:masters":                    {plain, p.Token(t, map[string]any{"sub": "eve", "groups": []string{"system:masters", "dev", "system:kcp:admin", "system:serviceaccounts"}}), identity{p.URL + "#eve", []string{"dev"}}},
		"system:masters, prefixed":          {prefixed, p.Token(t, map[string]any{"sub": "eve", "groups": []string{"system:masters"}, "tenant": "acme"}), identity{"oidc:eve", []string{"oidc:system:masters"}}},
		"a reserved name":                   {bare, p.Token(t, map[string]any{"name": "system:kube-controller-manager"}), identity{}},
		"a service account":                 {bare, p.Token(t, map[string]any{"name": "system:serviceaccount:default:robot"}), identity{}},
		"a service account from elsewhere":  {bare, p.Token(t, map[string]any{"name": "system:kcp:serviceaccount:aa:default:robot"}), identity{}},
		"one that says which cluster":       {bare, p.Token(t, map[string]any{"name": "system:serviceaccount:default:robot", "kubernetes.io": map[string]any{"clusterName": "aa"}}), identity{}},
		"an issuer's user that looks local": {plain, p.Token(t, map[string]any{"sub": "system:serviceaccount:default:robot"}), identity{Name: p.URL + "#system:serviceaccount:default:robot"}},
	} {
		got, err := tt.by.known(t, tt.token)
		if diff := cmp.Diff(tt.want, got); diff != "" || (err == nil) != (got.Name != "") {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}

	old := p.Token(t, map[string]any{"sub": "alice"})
	p.Rotate(t, "two")
	if got, err := plain.known(t, p.Token(t, map[string]any{"sub": "alice"})); got.Name != p.URL+"#alice" {
		t.Errorf("with a new key: %v, %v", got, err)
	}
	plain.await(t, old, identity{}) // the key is no longer published, and forgotten a moment later
	forged := p.Token(t, nil)
	for _, token := range []string{forged[:len(forged)-4] + "AAAA", forged + "x", strings.ReplaceAll(forged, ".", ""), "." + forged} {
		if got, err := plain.known(t, token); err == nil {
			t.Errorf("forged: %v", got)
		}
	}
}

func TestIdentityProvidersByFile(t *testing.T) {
	t.Parallel()
	first, second, third := authtest.NewIdentityProvider(t), authtest.NewIdentityProvider(t), authtest.NewIdentityProvider(t)
	path := authtest.WriteFile(t, "authentication.yaml", authtest.ProvidersFile("", first, second))
	a := providers(t, func(o *kubeoptions.BuiltInAuthenticationOptions) { o.AuthenticationConfigFile = path })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); a.Run(ctx) }()
	token := func(p *authtest.IdentityProvider) string { return p.Token(t, map[string]any{"sub": "alice"}) }
	a.await(t, token(first), identity{Name: "p0:alice"})
	a.await(t, token(second), identity{Name: "p1:alice"})
	if got, err := a.known(t, token(third)); err == nil {
		t.Errorf("of a provider that is not in the file: %v", got)
	}
	// With an empty prefix in the file, the provider may set all groups.
	if got, err := a.known(t, first.Token(t, map[string]any{"sub": "boss", "groups": "system:kcp:admin"})); !cmp.Equal(got, identity{"p0:boss", []string{"system:kcp:admin"}}) {
		t.Errorf("%v, %v", got, err)
	}

	authtest.ReplaceFile(t, path, []byte("this is no configuration"))
	authtest.ReplaceFile(t, path, authtest.ProvidersFile("", third, second))
	a.await(t, token(third), identity{Name: "p0:alice"})
	a.await(t, token(second), identity{Name: "p1:alice"})
	a.await(t, token(first), identity{})
	cancel()
	<-ended
	for name, broken := range map[string][]byte{
		"nothing":                nil,
		"another kind":           []byte("apiVersion: v1\nkind: ConfigMap\n"),
		"an unknown field":       append(authtest.ProvidersFile("", first), "x: y\n"...),
		"a provider twice":       authtest.ProvidersFile("", first, first),
		"other anonymous access": authtest.ProvidersFile("anonymous: {enabled: false}\n", first),
	} {
		authtest.ReplaceFile(t, path, broken)
		if changed, err := a.reload(t.Context()); changed || err == nil {
			t.Errorf("%s is taken over: %v", name, err)
		}
		a.await(t, token(third), identity{Name: "p0:alice"})
	}
}

// An identity provider that does not answer is not used, and does not delay other users.
func TestIdentityProviderThatIsDown(t *testing.T) {
	t.Parallel()
	up, down := authtest.NewIdentityProvider(t), authtest.NewIdentityProvider(t)
	path := authtest.WriteFile(t, "authentication.yaml", authtest.ProvidersFile("", up))
	a := providers(t, func(o *kubeoptions.BuiltInAuthenticationOptions) { o.AuthenticationConfigFile = path })
	alice := identity{Name: "p0:alice"}
	a.await(t, up.Token(t, map[string]any{"sub": "alice"}), alice)
	token := down.Token(t, nil)
	config := authtest.ProvidersFile("", down)
	down.Close()
	authtest.ReplaceFile(t, path, config)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if changed, err := a.reload(ctx); changed || err == nil {
		t.Errorf("taken over: %v, %v", changed, err)
	}
	a.await(t, up.Token(t, map[string]any{"sub": "alice"}), alice)
	if got, err := a.known(t, token); err == nil {
		t.Errorf("%v", got)
	}
	if changed, err := a.reload(ctx); changed || err == nil {
		t.Errorf("it is not tried again: %v, %v", changed, err)
	}
	// At first the token has no user, until the provider answers.
	late := providers(t, func(o *kubeoptions.BuiltInAuthenticationOptions) { o.AuthenticationConfigFile = path })
	if got, err := late.known(t, token); err == nil {
		t.Errorf("%v", got)
	}
}
