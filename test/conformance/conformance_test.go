// Package conformance checks that a workspace answers as a stock kube-apiserver of
// the same version does: both are sent the same requests, and all answers must be
// equal but for what no two servers have in common, such as uids and times.
package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/test/stock"
)

// side is one of the two servers.
type side struct {
	base    string // URL that paths are appended to
	clients map[string]*http.Client
}

// answer is what is compared.
type answer struct {
	Status      int
	ContentType string
	Warnings    []string
	Body        any
}

func TestConformance(t *testing.T) {
	want, got := startStock(t), startKCP(t)
	reasons := known()
	for _, file := range files(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".http"), func(t *testing.T) {
			for _, r := range parse(t, file) {
				name := filepath.Base(file) + ": " + r.name
				reason, differs := reasons[name]
				delete(reasons, name)
				diff := cmp.Diff(want.send(t, r), got.send(t, r))
				switch {
				case diff != "" && !differs:
					t.Errorf("%s\n%s %s (-stock +kcp):\n%s", name, r.method, r.path, diff)
				case diff == "" && differs:
					t.Errorf("%s: does not differ any more, though this is listed: %s", name, reason)
				}
			}
		})
	}
	for name := range reasons {
		t.Errorf("a known difference is listed for %q, which is no request", name)
	}
}

func startStock(t *testing.T) *side {
	t.Helper()
	c := &stock.ControlPlane{Binary: binary(t), Dir: t.TempDir()}
	t.Cleanup(c.Stop)
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.StartControllers(); err != nil {
		t.Fatal(err)
	}
	s := newSide(t, c.Config, "")
	return s
}

// binary finds the stock program where make puts it, and else builds it.
func binary(t *testing.T) string {
	t.Helper()
	for _, dir := range []string{"../../bin/race", "../../bin"} {
		if file, err := filepath.Abs(dir + "/kube"); err == nil {
			if _, err := os.Stat(file); err == nil {
				return file
			}
		}
	}
	file := filepath.Join(t.TempDir(), "kube")
	build := exec.CommandContext(t.Context(), "go", "-C", "../tools", "build",
		"-ldflags", "-X k8s.io/component-base/version.gitVersion="+kcp.KubernetesVersion, "-o", file, "./cmd/kube")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the stock program: %v\n%s", err, out)
	}
	return file
}

const workspaces = "/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces"

func startKCP(t *testing.T) *side {
	t.Helper()
	dir := t.TempDir()
	tokens := filepath.Join(dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte(stock.Tokens), 0o600); err != nil {
		t.Fatal(err)
	}
	srv := &kcp.Server{Dir: dir, Listen: "127.0.0.1:0", NoSync: true, TokenFile: tokens}
	if err := srv.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
	})
	admin, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	s := newSide(t, func(token string) *rest.Config {
		return &rest.Config{Host: srv.URL(), BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: admin.CAData}}
	}, "/clusters/root:conformance")
	made := *s
	made.base = strings.TrimSuffix(s.base, "/clusters/root:conformance")
	s.must(t, &made, workspaces, `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"conformance"}}`)
	s.must(t, s, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{"metadata":{"name":"user"},
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},
		"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"user"}]}`)
	return s
}

func newSide(t *testing.T, config func(token string) *rest.Config, prefix string) *side {
	t.Helper()
	s := &side{clients: map[string]*http.Client{}}
	for name, token := range map[string]string{"user": stock.UserToken, "ordinary": stock.OrdinaryToken, "admin": stock.AdminToken} {
		c := config(token)
		c.WarningHandler = rest.NoWarnings{}
		h, err := rest.HTTPClientFor(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(h.CloseIdleConnections)
		s.clients[name], s.base = h, c.Host+prefix
	}
	return s
}

// must creates an object as an administrator, before anything is compared.
func (s *side) must(t *testing.T, at *side, path, body string) {
	t.Helper()
	r := request{method: http.MethodPost, path: path, as: "admin", header: http.Header{"Content-Type": {"application/json"}}, body: body}
	if a := at.send(t, r); a.Status != http.StatusCreated {
		t.Fatalf("create at %s: %v", path, a)
	}
}

// send sends one request and returns what of the answer is comparable.
func (s *side) send(t *testing.T, r request) answer {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.method, s.base+r.path, strings.NewReader(r.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = r.header.Clone()
	res, err := s.clients[r.as].Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	a := answer{Status: res.StatusCode, ContentType: res.Header.Get("Content-Type"), Warnings: res.Header.Values("Warning")}
	if r.events > 0 && res.StatusCode == http.StatusOK {
		var events []any
		for d := json.NewDecoder(res.Body); len(events) < r.events; {
			var e any
			if err := d.Decode(&e); err != nil {
				t.Fatalf("%s: after %d events: %v", r.name, len(events), err)
			}
			events = append(events, normal("", e))
		}
		a.Body = events
		return a
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if json.Unmarshal(bytes.TrimSpace(b), &v) != nil {
		v = string(b)
	}
	a.Body = normal("", v)
	if m, ok := a.Body.(map[string]any); ok && m["openapi"] != nil {
		a.Body = m["components"].(map[string]any)["schemas"] // the rest names the server and its credentials
	}
	return a
}
