package server_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/cert"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/auth/authn"
	"github.com/unforked/kcp/internal/auth/authz"
	"github.com/unforked/kcp/internal/server"
)

// startWith starts a server with the access options that access returns for its URL.
func startWith(t *testing.T, access func(url string) server.Access) *running {
	t.Helper()
	return startConfigured(t, func(c *server.Config) { c.Access = access(c.ExternalURL) })
}

// startConfigured starts a server with a listener.
func startConfigured(t *testing.T, configure func(*server.Config)) *running {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &running{dir: t.TempDir(), url: "https://" + listener.Addr().String()}
	kubeconfig := filepath.Join(r.dir, "admin.kubeconfig")
	c := server.Config{Dir: r.dir, NoSync: true, Listener: listener, ExternalURL: r.url, Kubeconfig: kubeconfig}
	configure(&c)
	r.Server, err = server.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	admin, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	r.ca = admin.CAData
	return r
}

func file(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// providers returns an AuthenticationConfiguration that trusts the service account tokens of
// a server. It allows anonymous requests for health only.
func providers(r *running, prefix, audience string) []byte {
	return fmt.Appendf(nil, `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous: {enabled: true, conditions: [{path: /livez}]}
jwt:
- issuer:
    url: %s
    audiences: [%s]
    certificateAuthority: |
      %s
  claimMappings:
    username: {claim: sub, prefix: %q}
`, r.url, audience, strings.ReplaceAll(strings.TrimSpace(string(r.ca)), "\n", "\n      "), prefix)
}

func (c *tenant) who(config *rest.Config) (string, error) {
	r, err := must(kubernetes.NewForConfig(config))(c.t).AuthenticationV1().SelfSubjectReviews().Create(c.t.Context(), selfReview(), metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return r.Status.UserInfo.Username, nil
}

// awaitWho waits until a token authenticates as the user, or is invalid if want is empty.
func (c *tenant) awaitWho(token, want string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		got, err := c.who(c.withToken(token))
		if got == want && (err == nil || apierrors.IsUnauthorized(err)) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.t.Fatalf("the token is for %q, %v; want %q", got, err, want)
		}
	}
}

// tokenFor requests a token of an account for one audience.
func (c *tenant) tokenFor(account, audience string, seconds int64) authenticationv1.TokenRequestStatus {
	c.t.Helper()
	r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	if audience != "" {
		r.Spec.Audiences = []string{audience}
	}
	return must(c.kube.CoreV1().ServiceAccounts("default").CreateToken(c.t.Context(), account, r, metav1.CreateOptions{}))(c.t).Status
}

// One server publishes the keys of its service accounts. Another one accepts their tokens as
// those of an identity provider, with the rights that RBAC of each cluster grants.
func TestIdentityProviderOverTheNetwork(t *testing.T) {
	t.Parallel()
	provider := startWith(t, func(url string) server.Access {
		o := authn.DefaultOptions()
		o.ServiceAccounts.Issuers = []string{url}
		o.ServiceAccounts.MaxExpiration = 2 * time.Hour
		return server.Access{Authentication: o, Authorization: authz.AuthorizationOptions{
			AlwaysAllowPaths: []string{"/readyz", "/.well-known/openid-configuration", "/openid/v1/jwks"},
		}}
	})
	home := provider.tenant(t)
	home.account("robot")
	path := file(t, "authentication.yaml", providers(provider, "guest:", "shop"))
	r := startWith(t, func(string) server.Access {
		o := authn.DefaultOptions()
		o.AuthenticationConfigFile = path
		return server.Access{Authentication: o}
	})
	a, b := r.tenant(t), r.tenant(t)
	const guest = "guest:system:serviceaccount:default:robot"
	token := home.tokenFor("robot", "shop", 3600).Token
	a.grant("guest", rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "User", Name: guest})
	a.awaitWho(token, guest)
	list := func(c *tenant, token string) error {
		_, err := must(kubernetes.NewForConfig(c.withToken(token)))(t).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
		return err
	}
	if err := list(a, token); err != nil {
		t.Errorf("where RBAC allows it: %v", err)
	}
	if err := list(b, token); !apierrors.IsForbidden(err) {
		t.Errorf("in another cluster: %v", err)
	}
	for name, token := range map[string]string{
		"for another audience": home.tokenFor("robot", "", 3600).Token,
		"of nobody":            token + "x",
		"no token":             "",
	} {
		if err := list(a, token); !apierrors.IsUnauthorized(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Anonymous requests are allowed for health only, as configured.
	for path, want := range map[string]int{"/livez": 200, "/readyz": 401, a.path("/livez"): 200, a.path("/api/v1/namespaces"): 401} {
		if got := a.anonymous().send("GET", path, ""); got.code != want {
			t.Errorf("%s: %d %s", path, got.code, got.body)
		}
	}
	// --service-account-max-token-expiration limits the lifetime of tokens.
	if s := home.tokenFor("robot", "shop", 360000); time.Until(s.ExpirationTimestamp.Time) > 2*time.Hour {
		t.Errorf("it is valid until %v", s.ExpirationTimestamp)
	}
	// With the changed file, the provider's users have another prefix and are no service
	// accounts here.
	next := path + ".new"
	if err := os.WriteFile(next, providers(provider, "", "shop"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
	a.awaitWho(token, "")
	a.account("robot")
	if err := list(a, token); !apierrors.IsUnauthorized(err) {
		t.Errorf("an identity provider names a service account: %v", err)
	}
}

func TestDiscoveryOfTheIssuerIsGuarded(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	token := c.account("robot")
	for _, path := range []string{"/.well-known/openid-configuration", "/openid/v1/jwks"} {
		for name, tt := range map[string]struct {
			by   visitor
			at   string
			want int
		}{
			"a service account":                {c.visitor("robot", token), c.path(path), 200},
			"one without a cluster in the URL": {c.visitor("robot", token), path, 200},
			"nobody":                           {c.nobody(), c.path(path), 403},
			"anonymous":                        {c.anonymous(), path, 403},
		} {
			if got := tt.by.send("GET", tt.at, ""); got.code != tt.want || got.code == 200 && !json.Valid([]byte(got.body)) {
				t.Errorf("%s, %s: %d %s", name, path, got.code, got.body)
			}
		}
	}
}

// A certAuthority signs client certificates.
type certAuthority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newCertAuthority(t *testing.T) *certAuthority {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	return &certAuthority{key, must(cert.NewSelfSignedCACert(cert.Config{CommonName: "test"}, key))(t)}
}

func (a *certAuthority) file(t *testing.T) string {
	t.Helper()
	return file(t, "ca.crt", must(cert.EncodeCertificates(a.cert))(t))
}

// client returns a certificate and its key in PEM.
func (a *certAuthority) client(t *testing.T, name string) rest.TLSClientConfig {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der := must(x509.CreateCertificate(rand.Reader, template, a.cert, a.key.Public(), a.key))(t)
	key := must(x509.MarshalECPrivateKey(a.key))(t)
	return rest.TLSClientConfig{
		CertData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		KeyData:  pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: key}),
	}
}

// Only clients with a certificate of a proxy can set the user in headers.
func TestFrontProxyOverTheNetwork(t *testing.T) {
	t.Parallel()
	proxies, clients := newCertAuthority(t), newCertAuthority(t)
	r := startWith(t, func(string) server.Access {
		o := authn.DefaultOptions()
		o.ClientCert.ClientCA, o.RequestHeader.ClientCAFile = clients.file(t), proxies.file(t)
		o.RequestHeader.AllowedNames, o.RequestHeader.UsernameHeaders = []string{"front-proxy"}, []string{"X-Remote-User"}
		o.RequestHeader.GroupHeaders, o.RequestHeader.ExtraHeaderPrefixes = []string{"X-Remote-Group"}, []string{"X-Remote-Extra-"}
		o.TokenFile.TokenFile = file(t, "tokens.csv", []byte("a-token,alice,1\n"))
		return server.Access{Authentication: o}
	})
	c := r.tenant(t)
	robot := c.account("robot")
	c.grant("everybody", rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:authenticated"})
	for name, tt := range map[string]struct {
		tls   rest.TLSClientConfig
		token string
		user  string
		extra map[string][]string
		want  string // empty: 401
	}{
		"a proxy":                      {proxies.client(t, "front-proxy"), "", "bob", nil, "bob"},
		"a proxy for an account":       {proxies.client(t, "front-proxy"), "", "system:serviceaccount:default:robot", map[string][]string{auth.ClusterNameKey: {string(c.name)}}, "system:serviceaccount:default:robot"},
		"for one of no cluster":        {proxies.client(t, "front-proxy"), "", "system:serviceaccount:default:robot", nil, ""},
		"a proxy of another name":      {proxies.client(t, "x"), "", "bob", nil, ""},
		"a client":                     {clients.client(t, "front-proxy"), "", "bob", nil, "front-proxy"},
		"somebody with a token":        {rest.TLSClientConfig{}, "a-token", "bob", nil, "alice"},
		"a service account":            {rest.TLSClientConfig{}, robot, "bob", nil, "system:serviceaccount:default:robot"},
		"nobody":                       {rest.TLSClientConfig{}, "", "bob", nil, "system:anonymous"},
		"a certificate of nobody's CA": {newCertAuthority(t).client(t, "front-proxy"), "", "bob", nil, ""},
	} {
		config := c.withToken(tt.token)
		config.CertData, config.KeyData = tt.tls.CertData, tt.tls.KeyData
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return transport.NewAuthProxyRoundTripper(tt.user, "", []string{"system:masters"}, tt.extra, next)
		})
		got, err := c.who(config)
		if name == "nobody" && apierrors.IsForbidden(err) && strings.Contains(err.Error(), tt.want) {
			continue
		}
		if got != tt.want || (got == "") != apierrors.IsUnauthorized(err) {
			t.Errorf("%s: %q, %v; want %q", name, got, err, tt.want)
		}
	}
}

// A hook is a local webhook for tokens and for authorization.
type hook struct {
	*httptest.Server

	mu    sync.Mutex
	asked []string // "<user> in <cluster>: <resource>"
}

// newHook returns a webhook that authenticates tokens "hook-NAME" as NAME, and allows all
// requests in the cluster that the function returns.
func newHook(t *testing.T, cluster func() string) *hook {
	h := &hook{}
	mux := http.NewServeMux()
	mux.HandleFunc("/tokens", func(w http.ResponseWriter, req *http.Request) {
		var r authenticationv1.TokenReview
		if err := json.NewDecoder(req.Body).Decode(&r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		name, ok := strings.CutPrefix(r.Spec.Token, "hook-")
		r.Status = authenticationv1.TokenReviewStatus{Authenticated: ok, User: authenticationv1.UserInfo{Username: name}}
		answerJSON(w, r)
	})
	mux.HandleFunc("/requests", func(w http.ResponseWriter, req *http.Request) {
		var r authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(req.Body).Decode(&r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		told := strings.Join(r.Spec.Extra[authz.WebhookClusterKey], ",")
		h.mu.Lock()
		h.asked = append(h.asked, r.Spec.User+" in "+told)
		h.mu.Unlock()
		r.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: told == cluster()}
		answerJSON(w, r)
	})
	h.Server = httptest.NewTLSServer(mux)
	t.Cleanup(h.Close)
	return h
}

func answerJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func (h *hook) kubeconfig(t *testing.T, path string) string {
	t.Helper()
	c := clientcmdapi.NewConfig()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw})
	c.Clusters["hook"] = &clientcmdapi.Cluster{Server: h.URL + path, CertificateAuthorityData: ca}
	c.Contexts["hook"] = &clientcmdapi.Context{Cluster: "hook"}
	c.CurrentContext = "hook"
	return file(t, "hook.kubeconfig", must(clientcmd.Write(*c))(t))
}

// A decision of the webhook applies to one cluster only. While the webhook is down, only RBAC
// allows requests.
func TestWebhooksOverTheNetwork(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var open string
	h := newHook(t, func() string { mu.Lock(); defer mu.Unlock(); return open })
	r := startWith(t, func(string) server.Access {
		o := authn.DefaultOptions()
		o.WebHook.ConfigFile, o.WebHook.Version = h.kubeconfig(t, "/tokens"), "v1"
		return server.Access{Authentication: o, Authorization: authz.AuthorizationOptions{
			WebhookConfigFile: h.kubeconfig(t, "/requests"), WebhookAuthorizedTTL: time.Hour, WebhookUnauthorizedTTL: time.Hour,
		}}
	})
	a, b := r.tenant(t), r.tenant(t)
	mu.Lock()
	open = string(a.name)
	mu.Unlock()
	const target = "/api/v1/namespaces/default/secrets"
	forge := []string{"Impersonate-User", "eve", "Impersonate-Extra-Authorization.kubernetes.io%2fcluster-Name", string(a.name)}
	for range 2 {
		if got := a.visitor("eve", "hook-eve").send("GET", a.path(target), ""); got.code != 200 {
			t.Errorf("where the webhook allows it: %d %s", got.code, got.body)
		}
		if got := b.visitor("eve", "hook-eve").send("GET", b.path(target), ""); got.code != 403 {
			t.Errorf("where it does not: %d %s", got.code, got.body)
		}
		if got := a.visitor("eve", "hook-eve").send("GET", a.path(target), "", forge...); got.code != 200 {
			t.Errorf("impersonating where it allows everything: %d %s", got.code, got.body)
		}
		if got := b.visitor("eve", "hook-eve").send("GET", b.path(target), "", forge...); got.code != 403 {
			t.Errorf("impersonating where it does not: %d %s", got.code, got.body)
		}
	}
	// The owner of b cannot use decisions for a either.
	owner := b.owner()
	if got := owner.send("GET", b.path(target), "", "Impersonate-User", "mallory", "Impersonate-Extra-Authorization.kubernetes.io%2fcluster-Name", string(a.name)); got.code != 403 {
		t.Errorf("the owner of b as somebody who says that he is in a: %d %s", got.code, got.body)
	}
	for c, want := range map[*tenant]bool{a: true, b: false} {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "somebody", ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "secrets"},
			Extra: map[string]authorizationv1.ExtraValue{authz.WebhookClusterKey: {string(a.name)}},
		}}
		got := must(c.kube.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{}))(t)
		if got.Status.Allowed != want {
			t.Errorf("reviewed in %s: %+v", c.name, got.Status)
		}
	}
	if got := a.visitor("eve", "hook-eve").send("GET", "/clusters/*/api/v1/secrets", ""); got.code != 403 {
		t.Errorf("all clusters: %d %s", got.code, got.body)
	}
	h.Close()
	if got := a.visitor("dora", "hook-eve").send("GET", a.path("/api/v1/namespaces/default/configmaps"), ""); got.code != 500 || !strings.Contains(got.body, "authorization webhook") || strings.Contains(got.body, h.URL) {
		t.Errorf("while the webhook is down: %d %s", got.code, got.body)
	}
	if got := a.visitor("new", "hook-new").send("GET", a.path(target), ""); got.code != 401 {
		t.Errorf("a token that only the webhook knows: %d %s", got.code, got.body)
	}
	if got := owner.send("GET", b.path(target), ""); got.code != 200 {
		t.Errorf("what RBAC allows: %d %s", got.code, got.body)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, q := range h.asked {
		if strings.HasPrefix(q, "system:kcp ") || strings.HasSuffix(q, " in *") {
			t.Errorf("the webhook was asked about %s", q)
		}
	}
}

// After a change of issuer and key, tokens of the previous ones stay valid.
func TestServiceAccountKeysAreRotated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	begin := func(a server.Access) *running {
		s, err := server.New(t.Context(), server.Config{Dir: dir, NoSync: true, Access: a})
		if err != nil {
			t.Fatal(err)
		}
		return &running{Server: s, dir: dir}
	}
	first := begin(server.Access{AdminTokenFile: "admin-token"})
	c := first.tenant(t)
	token := c.account("robot")
	first.Close()
	if _, err := os.Stat(filepath.Join(dir, "admin-token")); err != nil {
		t.Errorf("--authentication-admin-token-path: %v", err)
	}

	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	signing := file(t, "new.key", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: must(x509.MarshalECPrivateKey(key))(t)}))
	o := authn.DefaultOptions()
	o.ServiceAccounts.Issuers = []string{"https://new.example", authn.DefaultIssuer}
	o.ServiceAccounts.KeyFiles = []string{filepath.Join(dir, "sa.key")}
	second := begin(server.Access{Authentication: o, SigningKeyFile: signing, AdminTokenFile: "admin-token"})
	defer second.Close()
	kube := must(kubernetes.NewForConfig(second.InProcess(string(c.name), server.System())))(t)
	review := func(token string) string {
		r := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
		return must(kube.AuthenticationV1().TokenReviews().Create(t.Context(), r, metav1.CreateOptions{}))(t).Status.User.Username
	}
	fresh := must(kube.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{}))(t).Status.Token
	want := "system:serviceaccount:default:robot"
	if diff := cmp.Diff([]string{want, want, ""}, []string{review(token), review(fresh), review(fresh + "x")}); diff != "" {
		t.Error(diff)
	}
}
