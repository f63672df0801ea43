package server_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// gold is contained in all objects of the victims. No response to another user may contain
// it.
const gold = "gold-of-the-victim"

// victim returns a tenant with objects that contain gold in the namespace default.
func victim(t *testing.T) *tenant {
	t.Helper()
	c := newTenant(t)
	treasure := metav1.ObjectMeta{Name: "treasure", Labels: map[string]string{"treasure": "yes"}}
	if _, err := c.kube.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: treasure, Data: map[string]string{"k": gold}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.kube.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: treasure, StringData: map[string]string{"k": gold}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, r := range []string{"configmaps", "secrets"} {
			o, err := c.any.Resource(core(r)).Namespace("default").Get(context.Background(), "treasure", metav1.GetOptions{})
			if err != nil || o.GetGeneration() != 0 || text(o, "metadata", "labels", "treasure") != "yes" {
				t.Errorf("the treasure in %s is now %v, %v", r, o, err)
			}
		}
	})
	return c
}

// A visitor sends requests without normalizing their URLs.
type visitor struct {
	t      *testing.T
	server *running
	name   string // for messages
	token  string // empty for anonymous requests
	http1  bool
}

// visitors returns attackers in tenant c: its owner, another authenticated user, and an
// anonymous one.
func (c *tenant) visitors() []visitor {
	c.t.Helper()
	return []visitor{c.owner(), c.nobody(), c.anonymous()}
}

func (c *tenant) visitor(name, token string) visitor {
	return visitor{t: c.t, server: c.server, name: name, token: token}
}
func (c *tenant) nobody() visitor    { return c.visitor("nobody", "nobodys-token") }
func (c *tenant) alice() visitor     { return c.visitor("alice", "alices-token") }
func (c *tenant) anonymous() visitor { return c.visitor("anonymous", "") }

// owner returns a service account with all rights in the tenant's cluster.
func (c *tenant) owner() visitor {
	c.t.Helper()
	ctx := c.t.Context()
	c.grant("owner", rbacv1.Subject{Kind: "ServiceAccount", Namespace: "default", Name: "owner"})
	if _, err := c.kube.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	return c.visitor("owner", c.token("owner"))
}

// token returns a token of a service account.
func (c *tenant) token(account string) string {
	c.t.Helper()
	return must(c.kube.CoreV1().ServiceAccounts("default").CreateToken(c.t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{}))(c.t).Status.Token
}

// grant makes a subject an administrator of the tenant's cluster.
func (c *tenant) grant(name string, to rbacv1.Subject) {
	c.t.Helper()
	if _, err := c.kube.RbacV1().ClusterRoleBindings().Create(c.t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: []rbacv1.Subject{to},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// path returns a path in the tenant's cluster.
func (c *tenant) path(rest string) string { return "/clusters/" + string(c.name) + rest }

// An answer is a response.
type answer struct {
	code   int
	header http.Header
	body   string
}

// send sends a request with an unparsed target. Headers are pairs of name and value.
func (v visitor) send(method, target, body string, headers ...string) answer {
	v.t.Helper()
	a, err := v.try(method, target, body, headers...)
	// A server may close a connection while a client writes the next request to it. Go sends again
	// only requests that it knows to be idempotent.
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		a, err = v.try(method, target, body, headers...)
	}
	if err != nil {
		v.t.Fatalf("%s: %s %.200s: %v", v.name, method, target, err)
	}
	return a
}

func (v visitor) try(method, target, body string, headers ...string) (answer, error) {
	resp, err := v.open(v.t.Context(), method, target, strings.NewReader(body), headers...)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	a := answer{resp.StatusCode, resp.Header, string(b)}
	if strings.Contains(a.body, gold) {
		v.t.Errorf("%s got by %s %.200s:\n%s", v.name, method, target, a.body)
	}
	return a, err
}

func (v visitor) open(ctx context.Context, method, target string, body io.Reader, headers ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, v.server.url, body)
	if err != nil {
		return nil, err
	}
	if req.URL.Opaque = target; strings.HasPrefix(target, "//") { // Go would read "//" as the start of an authority
		req.URL.Opaque, req.URL.Path = "", target
	}
	if v.token != "" {
		req.Header.Set("Authorization", "Bearer "+v.token)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header[headers[i]] = append(req.Header[headers[i]], headers[i+1])
	}
	return (&http.Client{Transport: v.server.transport(v.t, v.http1), CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(req)
}

// raw sends bytes and returns everything that the server sends until it closes the
// connection.
func (v visitor) raw(request string) string {
	v.t.Helper()
	config := v.server.tls()
	config.NextProtos = []string{"http/1.1"}
	c, err := tls.Dial("tcp", strings.TrimPrefix(v.server.url, "https://"), config)
	if err != nil {
		v.t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, request); err != nil {
		v.t.Fatal(err)
	}
	var b bytes.Buffer
	_, _ = io.Copy(&b, c) // any error is expected
	if strings.Contains(b.String(), gold) {
		v.t.Errorf("got by %.200q:\n%s", request, &b)
	}
	return b.String()
}

func (r *running) tls() *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.ca)
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

// transport returns one of two transports that all visitors share.
func (r *running) transport(t *testing.T, http1 bool) *http.Transport {
	t.Helper()
	made, _ := r.transports.LoadOrStore(http1, sync.OnceValue(func() *http.Transport {
		config := r.tls()
		if http1 {
			config.NextProtos = []string{"http/1.1"}
		}
		return &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: !http1, DisableCompression: true}
	}))
	return made.(func() *http.Transport)()
}

func (a answer) ok() bool { return a.code >= 200 && a.code < 300 }

// broken reports whether the server failed. It is no failure if the server does not implement
// the request, or reports, as Kubernetes does, that an applied object cannot be converted.
func (a answer) broken() bool {
	applied := strings.Contains(a.body, "failed to create typed patch object") || strings.Contains(a.body, "failed to convert new object")
	return a.code >= 500 && a.code != http.StatusNotImplemented && !applied
}
