package authn

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/auth/authtest"
	"github.com/unforked/kcp/internal/cluster"
)

// remote returns the headers of a proxy for a user.
func remote(name string, more ...string) http.Header {
	h := http.Header{"X-Remote-User": {name}, "X-Remote-Uid": {"u1"}, "X-Remote-Group": {"dev"}}
	for i := 0; i+1 < len(more); i += 2 {
		h.Add(more[i], more[i+1])
	}
	return h
}

func TestProxies(t *testing.T) {
	t.Parallel()
	proxies, clients := newIssuer(t), newIssuer(t)
	named := func(o *kubeoptions.BuiltInAuthenticationOptions) {
		o.ClientCert.ClientCA, o.RequestHeader.ClientCAFile = clients.file(t), proxies.file(t)
		o.RequestHeader.AllowedNames = []string{"front-proxy"}
		o.RequestHeader.UsernameHeaders, o.RequestHeader.UIDHeaders = []string{"X-Remote-User"}, []string{"X-Remote-Uid"}
		o.RequestHeader.GroupHeaders, o.RequestHeader.ExtraHeaderPrefixes = []string{"X-Remote-Group"}, []string{"X-Remote-Extra-"}
	}
	strict := authenticators(t, named)
	lax := authenticators(t, func(o *kubeoptions.BuiltInAuthenticationOptions) { named(o); o.RequestHeader.AllowedNames = nil })
	both := authenticators(t, func(o *kubeoptions.BuiltInAuthenticationOptions) {
		named(o)
		o.ClientCert.ClientCA = o.RequestHeader.ClientCAFile
	})
	const home = "X-Remote-Extra-Authentication.kcp.io%2fcluster-Name"
	proxy := proxies.client(t, "front-proxy", "system:masters")
	alice := identity{"alice", []string{"dev", "system:authenticated"}}
	for name, tt := range map[string]struct {
		by     *Authenticators
		in     cluster.Name
		header http.Header
		tls    *tls.ConnectionState
		want   identity // nobody: 401
	}{
		"a user":                               {strict, "aa", remote("alice"), proxy, alice},
		"the proxy itself is nobody":           {strict, "aa", http.Header{}, proxy, identity{}},
		"the proxy is a client too":            {both, "aa", http.Header{}, proxy, identity{"front-proxy", []string{"system:masters", "system:authenticated"}}},
		"a user, and the proxy a client":       {both, "aa", remote("alice"), proxy, alice},
		"a proxy of another name":              {strict, "aa", remote("alice"), proxies.client(t, "eve"), identity{}},
		"a proxy of any name":                  {lax, "aa", remote("alice"), proxies.client(t, "eve"), alice},
		"the certificate of a client":          {strict, "aa", remote("alice"), clients.client(t, "eve"), identity{"eve", []string{"system:authenticated"}}},
		"of a client called like the proxy":    {strict, "aa", remote("alice"), clients.client(t, "front-proxy"), identity{"front-proxy", []string{"system:authenticated"}}},
		"of nobody's CA":                       {strict, "aa", remote("alice"), newIssuer(t).client(t, "front-proxy"), identity{}},
		"no certificate":                       {strict, "aa", remote("alice", "X-Remote-Group", "system:masters"), nil, identity{"system:anonymous", []string{"system:unauthenticated"}}},
		"an account at home":                   {strict, "aa", remote("system:serviceaccount:ns:robot", home, "aa"), proxy, identity{"system:serviceaccount:ns:robot", []string{"dev", "system:authenticated"}}},
		"an account elsewhere":                 {strict, "bb", remote("system:serviceaccount:ns:robot", home, "aa"), proxy, identity{"system:kcp:serviceaccount:aa:ns:robot", []string{"system:authenticated", "system:cluster:aa"}}},
		"an account, and all clusters":         {strict, cluster.All, remote("system:serviceaccount:ns:robot", home, "aa"), proxy, identity{"system:kcp:serviceaccount:aa:ns:robot", []string{"system:authenticated", "system:cluster:aa"}}},
		"an account by its name elsewhere":     {strict, "bb", remote("system:kcp:serviceaccount:aa:ns:robot", home, "aa"), proxy, identity{"system:kcp:serviceaccount:aa:ns:robot", []string{"dev", "system:authenticated"}}},
		"an account of no cluster":             {strict, "aa", remote("system:serviceaccount:ns:robot"), proxy, identity{}},
		"an account of two clusters":           {strict, "aa", remote("system:serviceaccount:ns:robot", home, "aa", home, "bb"), proxy, identity{}},
		"an account of what is no cluster":     {strict, "aa", remote("system:serviceaccount:ns:robot", home, "*"), proxy, identity{}},
		"an account that contradicts itself":   {strict, "bb", remote("system:kcp:serviceaccount:aa:ns:robot", home, "bb"), proxy, identity{}},
		"an account by certificate":            {strict, "aa", http.Header{}, clients.client(t, "system:serviceaccount:ns:robot"), identity{}},
		"an account by certificate, elsewhere": {strict, "aa", http.Header{}, clients.client(t, "system:kcp:serviceaccount:bb:ns:robot"), identity{}},
	} {
		r, ok, err := tt.by.AuthenticateRequest((&http.Request{Header: tt.header, TLS: tt.tls}).WithContext(authtest.In(tt.in)))
		got := identity{}
		if ok && err == nil {
			got = identity{r.User.GetName(), r.User.GetGroups()}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
	if strict.RequestHeader == nil || strict.ClientCA == nil || len(strict.ClientCA.CurrentCABundleContent()) <= len(both.RequestHeader.CAContentProvider.CurrentCABundleContent()) {
		t.Error("the listener is not told of the CAs of both proxies and clients")
	}
}

// tokenReviewer is an authentication webhook.
func tokenReviewer(t *testing.T, decide func(authenticationv1.TokenReviewSpec) authenticationv1.TokenReviewStatus) (*httptest.Server, *atomic.Int32) {
	asked := new(atomic.Int32)
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked.Add(1)
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Status = decide(review.Spec)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(s.Close)
	return s, asked
}

func TestTokenWebhook(t *testing.T) {
	t.Parallel()
	users := map[string]authenticationv1.UserInfo{
		"alice":   {Username: "alice", UID: "u1", Groups: []string{"dev"}},
		"robot":   {Username: "system:serviceaccount:ns:robot", Extra: map[string]authenticationv1.ExtraValue{auth.ClusterNameKey: {"aa"}}},
		"nowhere": {Username: "system:serviceaccount:ns:robot"},
		"shop":    {Username: "shopper"},
	}
	hook, asked := tokenReviewer(t, func(s authenticationv1.TokenReviewSpec) authenticationv1.TokenReviewStatus {
		u, ok := users[s.Token]
		status := authenticationv1.TokenReviewStatus{Authenticated: ok, User: u}
		if s.Token == "shop" {
			status.Audiences = []string{"shop"}
		}
		return status
	})
	for _, version := range []string{"v1", "v1beta1"} {
		a := authenticators(t, func(o *kubeoptions.BuiltInAuthenticationOptions) {
			o.WebHook.ConfigFile, o.WebHook.Version, o.WebHook.CacheTTL = authtest.WebhookFile(t, hook.URL, authtest.CAOf(hook)), version, time.Hour
		})
		before := asked.Load()
		for _, tt := range []struct {
			in    cluster.Name
			token string
			want  identity // nobody: 401
		}{
			{"aa", "alice", identity{"alice", []string{"dev", "system:authenticated"}}},
			{"bb", "alice", identity{"alice", []string{"dev", "system:authenticated"}}},
			// The cached answer for an account does not apply to another cluster.
			{"aa", "robot", identity{"system:serviceaccount:ns:robot", []string{"system:authenticated"}}},
			{"bb", "robot", identity{"system:kcp:serviceaccount:aa:ns:robot", []string{"system:authenticated", "system:cluster:aa"}}},
			{"aa", "robot", identity{"system:serviceaccount:ns:robot", []string{"system:authenticated"}}},
			{"aa", "nowhere", identity{}},
			{"aa", "shop", identity{}},
			{"aa", "unknown", identity{}},
			{"aa", "unknown", identity{}},
		} {
			r := (&http.Request{Header: withToken(tt.token)}).WithContext(authenticator.WithAudiences(authtest.In(tt.in), a.Audiences))
			response, ok, err := a.AuthenticateRequest(r)
			got := identity{}
			if ok && err == nil {
				got = identity{response.User.GetName(), response.User.GetGroups()}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s: %s in %s: %v\n%s", version, tt.token, tt.in, err, diff)
			}
		}
		if n := asked.Load() - before; n != 5 {
			t.Errorf("%s: the webhook was asked %d times about 5 tokens", version, n)
		}
	}
}

// A webhook that hangs or is down authenticates no users, does not affect users of other
// authenticators, and has a timeout.
func TestTokenWebhookThatFails(t *testing.T) {
	t.Parallel()
	hung := authtest.HangingServer(t)
	down := httptest.NewTLSServer(nil)
	down.Close()
	for name, s := range map[string]*httptest.Server{"hangs": hung, "is down": down} {
		o := DefaultOptions().WebHook
		o.ConfigFile = authtest.WebhookFile(t, s.URL, authtest.CAOf(s))
		hook, err := tokenWebhook(o, nil, 50*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if r, ok, err := hook.AuthenticateToken(authtest.In("aa"), "alice"); ok || err == nil || !strings.Contains(err.Error(), s.URL) {
			t.Errorf("%s: %v, %v, %v", name, r, ok, err)
		}
		tokens := authtest.WriteFile(t, "tokens.csv", []byte("known,dora,u1\n"))
		a := authenticators(t, func(all *kubeoptions.BuiltInAuthenticationOptions) { all.WebHook, all.TokenFile.TokenFile = o, tokens })
		if got, err := a.known(t, "aa", withToken("known")); got.Name != "dora" {
			t.Errorf("%s: a user of the token file: %v, %v", name, got, err)
		}
		ctx, cancel := context.WithTimeout(authtest.In("aa"), 50*time.Millisecond)
		if _, ok, err := a.AuthenticateRequest((&http.Request{Header: withToken("alice")}).WithContext(ctx)); ok || err == nil {
			t.Errorf("%s: let in, %v", name, err)
		}
		cancel()
	}
}

func TestOptionsThatAreWrong(t *testing.T) {
	t.Parallel()
	missing, broken := "/does/not/exist", authtest.WriteFile(t, "broken", []byte("{"))
	clients := newIssuer(t).file(t)
	jwt := authtest.NewIdentityProvider(t)
	type opts = *kubeoptions.BuiltInAuthenticationOptions
	for name, tt := range map[string]struct {
		change func(opts)
		want   []string
	}{
		"no client CAs":         {func(o opts) { o.ClientCert.ClientCA = missing }, []string{"--client-ca-file", missing}},
		"broken client CAs":     {func(o opts) { o.ClientCert.ClientCA = broken }, []string{"--client-ca-file"}},
		"no tokens":             {func(o opts) { o.TokenFile.TokenFile = missing }, []string{"--token-auth-file", missing}},
		"a line without a user": {func(o opts) { o.TokenFile.TokenFile = authtest.WriteFile(t, "tokens", []byte("a,b\n")) }, []string{"--token-auth-file", "token,name,uid"}},
		"no proxy CAs": {func(o opts) {
			o.RequestHeader.ClientCAFile, o.RequestHeader.UsernameHeaders = missing, []string{"X-Remote-User"}
		}, []string{"--requestheader-client-ca-file", missing}},
		"proxies without a CA": {func(o opts) { o.RequestHeader.AllowedNames = []string{"x"} }, []string{"--requestheader-client-ca-file"}},
		"a CA without headers": {func(o opts) { o.RequestHeader.ClientCAFile = clients }, []string{"--requestheader-username-headers", "X-Remote-User"}},
		"one CA for clients and proxies": {func(o opts) {
			o.ClientCert.ClientCA, o.RequestHeader.ClientCAFile, o.RequestHeader.UsernameHeaders = clients, clients, []string{"X-Remote-User"}
		}, []string{"--requestheader-allowed-names must be specified"}},
		"a provider without client": {func(o opts) { o.OIDC.IssuerURL, o.OIDC.FlagsSet = jwt.URL, true }, []string{"oidc-issuer-url and oidc-client-id"}},
		"no CA of the provider":     {func(o opts) { o.OIDC.IssuerURL, o.OIDC.ClientID, o.OIDC.CAFile = jwt.URL, "kcp", missing }, []string{"--oidc-ca-file", missing}},
		"a broken one":              {func(o opts) { o.OIDC.IssuerURL, o.OIDC.ClientID, o.OIDC.CAFile = jwt.URL, "kcp", broken }, []string{"--oidc-ca-file", broken}},
		"a provider without TLS":    {func(o opts) { o.OIDC.IssuerURL, o.OIDC.ClientID = "http://x", "kcp" }, []string{"--oidc", "https"}},
		"an algorithm": {func(o opts) {
			o.OIDC.IssuerURL, o.OIDC.ClientID, o.OIDC.SigningAlgs = jwt.URL, "kcp", []string{"HS256"}
		}, []string{"--oidc-signing-algs", "RS256"}},
		"the server's issuer":  {func(o opts) { o.OIDC.IssuerURL, o.OIDC.ClientID = DefaultIssuer, "kcp" }, []string{DefaultIssuer}},
		"no file of providers": {func(o opts) { o.AuthenticationConfigFile = missing }, []string{"--authentication-config", missing}},
		"a broken file":        {func(o opts) { o.AuthenticationConfigFile = broken }, []string{"--authentication-config", broken}},
		"a file and flags": {func(o opts) {
			o.AuthenticationConfigFile, o.OIDC.FlagsSet = authtest.WriteFile(t, "f", authtest.ProvidersFile("", jwt)), true
		}, []string{"mutually exclusive"}},
		"anonymous twice": {func(o opts) {
			o.AuthenticationConfigFile, o.Anonymous.FlagsSet = authtest.WriteFile(t, "f", authtest.ProvidersFile("anonymous: {enabled: true}\n")), true
		}, []string{"--anonymous-auth"}},
		"egress": {func(o opts) {
			o.AuthenticationConfigFile = authtest.WriteFile(t, "f", []byte(strings.Replace(string(authtest.ProvidersFile("", jwt)), "    audiences:", "    egressSelectorType: cluster\n    audiences:", 1)))
		}, []string{"egressSelectorType"}},
		"no webhook":          {func(o opts) { o.WebHook.ConfigFile = missing }, []string{"--authentication-token-webhook-config-file", missing}},
		"a webhook's version": {func(o opts) { o.WebHook.ConfigFile, o.WebHook.Version = authtest.WebhookFile(t, jwt.URL, nil), "v7" }, []string{"--authentication-token-webhook-version", "v7"}},
		"a webhook's cache":   {func(o opts) { o.WebHook.CacheTTL = -1 }, []string{"--authentication-token-webhook-cache-ttl"}},
	} {
		_, err := NewAuthenticators(Authentication{ServiceAccounts: newAccounts(t, newObjects().options()), Options: options(tt.change)})
		if err == nil {
			t.Errorf("%s is accepted", name)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v; want %q", name, err, want)
			}
		}
	}
}
