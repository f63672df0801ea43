package server_test

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unforked/kcp/internal/auth/authn"
	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/tenancy/mounts"
)

var edges = schema.GroupVersionResource{Group: "edge.example.com", Version: "v1", Resource: "edges"}

// newMountServer starts a server that may call local addresses, with a client certificate.
func newMountServer(t *testing.T) *running {
	t.Helper()
	cert, key, _, err := server.IssueForTest("kcp-mounts", nil)
	if err != nil {
		t.Fatal(err)
	}
	return startConfigured(t, func(c *server.Config) {
		c.EgressAllow = loopback()
		c.Mounts = mounts.Certificate{CertFile: file(t, "tls.crt", cert), KeyFile: file(t, "tls.key", key)}
		c.Access.Authentication = authn.DefaultOptions()
		c.Access.Authentication.TokenFile.TokenFile = file(t, "tokens.csv", []byte("nobodys-token,nobody,nobody\nalices-token,alice,7,\"staff,system:masters\"\n"))
	})
}

// An edge is a server behind a mounted workspace.
type edge struct {
	*httptest.Server
	seen chan *http.Request
}

func newEdge(t *testing.T, serve http.HandlerFunc) *edge {
	t.Helper()
	e := &edge{seen: make(chan *http.Request, 100)}
	e.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		e.seen <- req
		serve(w, req)
	}))
	e.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	e.Config.ErrorLog = log.New(io.Discard, "", 0)
	e.StartTLS()
	t.Cleanup(e.Close)
	return e
}

func (e *edge) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: e.Certificate().Raw})
}

func edgeDefinition() *apiextensionsv1.CustomResourceDefinition {
	anything := true
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "edges.edge.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: edges.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "edges", Kind: "Edge"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: edges.Version, Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{
				OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &anything},
			}}},
		},
	}
}

func mountedWorkspace(name string) *unstructured.Unstructured {
	ws := workspace(name)
	ws.Object["spec"] = map[string]any{"mount": map[string]any{"ref": map[string]any{
		"apiVersion": "edge.example.com/v1", "kind": "Edge", "name": name, "namespace": "default",
	}}}
	return ws
}

func (c *tenant) edge(name, url, phase string, ca []byte) {
	c.t.Helper()
	status := map[string]any{"URL": url, "phase": phase}
	if ca != nil {
		status["caBundle"] = base64.StdEncoding.EncodeToString(ca)
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "edge.example.com/v1", "kind": "Edge", "metadata": map[string]any{"name": name, "namespace": "default"}, "status": status,
	}}
	if _, err := c.any.Resource(edges).Namespace("default").Create(c.t.Context(), o, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// mount creates a workspace that an edge serves, and returns its path.
func (c *tenant) mount(name, url string, ca []byte) string {
	c.t.Helper()
	c.edge(name, url, "Ready", ca)
	if _, err := c.any.Resource(workspaces).Create(c.t.Context(), mountedWorkspace(name), metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.await(workspaces, "", name, phaseIs("Ready"))
	return "/clusters/" + string(c.name) + ":" + name
}

// mountReady returns the condition of a mounted workspace.
func mountReady(ws *unstructured.Unstructured) (status, reason, message string) {
	all, _, _ := unstructured.NestedSlice(ws.Object, "status", "conditions")
	for _, one := range all {
		if c, _ := one.(map[string]any); c["type"] == "WorkspaceMountReady" {
			return fmt.Sprint(c["status"]), fmt.Sprint(c["reason"]), fmt.Sprint(c["message"])
		}
	}
	return "", "", ""
}

// Requests to a mounted workspace are proxied with the user and without credentials.
func TestMounts(t *testing.T) {
	t.Parallel()
	s := newMountServer(t)
	c := s.tenant(t)
	c.define(edgeDefinition())
	e := newEdge(t, func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Set-Cookie", "session=1")
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("X-Answer", "yes")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.Copy(w, req.Body)
	})
	path := c.mount("far", e.URL+"/base/", e.ca())
	ws := c.await(workspaces, "", "far", there)
	if status, _, _ := mountReady(ws); status != "True" || text(ws, "spec", "URL") != e.URL+"/base/" || text(ws, "spec", "cluster") != "<nil>" || text(ws, "spec", "type") != "<nil>" {
		t.Errorf("the workspace is %v", ws.Object)
	}
	alice := c.alice()
	alice.http1 = true // HTTP/1.1 has the header Connection
	got := alice.send("POST", path+"/api/v1/things?a=b&c=%2F", "body", "Content-Type", "x/y", "X-Remote-User", "admin", "X-Remote-Group", "system:masters",
		"X_remote_user", "admin", "X-Remote-Extra-Scopes", "x", "Cookie", "a=b", "Impersonate-User", "bob", "Connection", "X-Remote-User")
	if got.code != http.StatusTeapot || got.body != "body" || got.header.Get("X-Answer") != "yes" {
		t.Errorf("the answer is %d %v %s", got.code, got.header, got.body)
	}
	for _, name := range []string{"Set-Cookie", "Access-Control-Allow-Origin"} {
		if got.header.Get(name) != "" {
			t.Errorf("the answer has %s: %q", name, got.header.Get(name))
		}
	}
	req := <-e.seen
	if req.Method != "POST" || req.URL.Path != "/base/api/v1/things" || req.URL.RawQuery != "a=b&c=%2F" || req.Host != strings.TrimPrefix(e.URL, "https://") {
		t.Errorf("it is asked for %s %s of %s", req.Method, req.URL, req.Host)
	}
	said := map[string][]string{}
	for name, values := range req.Header {
		if lower := strings.ToLower(strings.ReplaceAll(name, "_", "-")); strings.HasPrefix(lower, "x-remote") || lower == "authorization" || lower == "cookie" || lower == "impersonate-user" {
			said[name] = values
		}
	}
	want := map[string][]string{
		"X-Remote-User": {"alice"}, "X-Remote-Uid": {"7"}, "X-Remote-Group": {"staff", "system:authenticated"}, "Impersonate-User": {"bob"},
	}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Error(diff)
	}
	if len(req.TLS.PeerCertificates) == 0 || req.TLS.PeerCertificates[0].Subject.CommonName != "kcp-mounts" {
		t.Errorf("the certificates %v are shown", req.TLS.PeerCertificates)
	}
	c.checkMountUsers(path, e)
	for _, beyond := range []string{path + ":below/api", path + ":far/api", "/clusters/" + string(c.name) + ":other/api"} {
		if got := c.alice().send("GET", beyond, ""); got.code != http.StatusNotFound && got.code != http.StatusForbidden || got.header.Get("X-Answer") != "" {
			t.Errorf("%s: %d %s", beyond, got.code, got.body)
		}
	}
}

// checkMountUsers checks the users that an edge gets for different clients.
func (c *tenant) checkMountUsers(path string, e *edge) {
	c.t.Helper()
	owner := c.owner()
	for name, v := range map[string]visitor{
		"nobody": c.nobody(), "": c.anonymous(), "system:kcp:serviceaccount:" + string(c.name) + ":default:owner": owner,
	} {
		v.send("GET", path+"/api", "", "Authorization-Extra", "x")
		req := <-e.seen
		if got := req.Header.Get("X-Remote-User"); got != name || req.Header.Get("Authorization") != "" {
			c.t.Errorf("%q is %q, with %q", name, got, req.Header.Get("Authorization"))
		}
		if groups := req.Header["X-Remote-Group"]; name == "" && len(groups) > 0 {
			c.t.Errorf("anonymous is in %q", groups)
		}
	}
	if got := c.visitor("unknown", "no-token").send("GET", path+"/api", ""); got.code != http.StatusUnauthorized || len(e.seen) > 0 {
		c.t.Errorf("an unknown token: %d %s", got.code, got.body)
	}
}

// A mounted workspace follows changes of its mount object and of that object's definition.
func TestMountFollowsItsObject(t *testing.T) {
	t.Parallel()
	s := newMountServer(t)
	c := s.tenant(t)
	e := newEdge(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") })
	is := func(phase, reason string, words ...string) func(*unstructured.Unstructured) bool {
		return func(o *unstructured.Unstructured) bool {
			if o == nil {
				return false
			}
			_, why, message := mountReady(o)
			return phaseIs(phase)(o) && (why == reason || why == "<nil>" && reason == "") && containsAll(message, words)
		}
	}
	if _, err := c.any.Resource(workspaces).Create(t.Context(), mountedWorkspace("far"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	path := "/clusters/" + string(c.name) + ":far"
	unavailable := func(what string) {
		t.Helper()
		if got := c.alice().send("GET", path+"/api", ""); got.code != http.StatusServiceUnavailable || strings.TrimSpace(got.body) != "Not available." {
			t.Errorf("%s: %d %s", what, got.code, got.body)
		}
	}
	c.await(workspaces, "", "far", is("Unavailable", "MountObjectNotFound", "no custom resource of kind Edge"))
	unavailable("without a definition")
	c.define(edgeDefinition())
	c.await(workspaces, "", "far", is("Unavailable", "MountObjectNotFound", "no Edge default/far"))
	c.edge("far", e.URL, "Connecting", e.ca())
	c.await(workspaces, "", "far", is("Unavailable", "MountObjectNotReady", "Connecting"))
	unavailable("while it connects")
	patch := func(status map[string]any) {
		t.Helper()
		data := must(json.Marshal(map[string]any{"status": status}))(t)
		if _, err := c.any.Resource(edges).Namespace("default").Patch(t.Context(), "far", types.MergePatchType, data, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	patch(map[string]any{"phase": "Ready"})
	c.await(workspaces, "", "far", is("Ready", ""))
	if got := c.alice().send("GET", path+"/api", ""); got.body != "here" {
		t.Errorf("when it is ready: %d %s", got.code, got.body)
	}
	for url, why := range map[string]string{"http://x": "like https", "": "like https", "https://a@b/": "no user", "https://b/?x=y": "no user, query", "https://%zz": "invalid", "https://": "like https"} {
		patch(map[string]any{"URL": url})
		c.await(workspaces, "", "far", is("Unavailable", "MountObjectNotReady", why))
		patch(map[string]any{"URL": e.URL})
		c.await(workspaces, "", "far", is("Ready", ""))
	}
	patch(map[string]any{"caBundle": "eA=="})
	c.await(workspaces, "", "far", is("Unavailable", "MountObjectNotReady", "caBundle"))
	patch(map[string]any{"caBundle": nil, "phase": 7})
	c.await(workspaces, "", "far", is("Unavailable", "MountObjectNotReady"))
	patch(map[string]any{"phase": "Ready", "URL": e.URL + "/other", "caBundle": base64.StdEncoding.EncodeToString(e.ca())})
	if ws := c.await(workspaces, "", "far", is("Ready", "")); text(ws, "spec", "URL") != e.URL+"/other" {
		t.Errorf("its URL is %s", text(ws, "spec", "URL"))
	}
	if err := c.any.Resource(edges).Namespace("default").Delete(t.Context(), "far", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(workspaces, "", "far", is("Unavailable", "MountObjectNotFound"))
	c.deleteWorkspace("far")
	c.await(workspaces, "", "far", gone)
	self := mountedWorkspace("self")
	self.Object["spec"] = map[string]any{"mount": map[string]any{"ref": map[string]any{"apiVersion": "core.kcp.io/v1alpha1", "kind": "LogicalCluster", "name": "cluster"}}}
	must(c.any.Resource(workspaces).Create(t.Context(), self, metav1.CreateOptions{}))(t)
	c.await(workspaces, "", "self", is("Unavailable", "MountObjectNotFound", "no custom resource of kind LogicalCluster"))
	if got := c.nobody().send("GET", path+"/api", ""); got.code != http.StatusForbidden {
		t.Errorf("when it is gone: %d %s", got.code, got.body)
	}
}

// TestMountAdmission checks which mounts users can create.
func TestMountAdmission(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	owner := c.allow("owner")
	typed := mountedWorkspace("typed")
	must(struct{}{}, unstructured.SetNestedField(typed.Object, map[string]any{"name": "universal", "path": "root"}, "spec", "type"))(t)
	if _, err := owner.any.Resource(workspaces).Create(t.Context(), typed, metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "spec.type must be unset") {
		t.Errorf("with a type: %v", err)
	}
	trusting := mountedWorkspace("trusting")
	trusting.SetAnnotations(map[string]string{"internal.tenancy.kcp.io/mount-ca": "eA=="})
	made := must(owner.any.Resource(workspaces).Create(t.Context(), trusting, metav1.CreateOptions{}))(t)
	if made.GetAnnotations()["internal.tenancy.kcp.io/mount-ca"] != "" || text(made, "status", "phase") == "Ready" {
		t.Errorf("it is made as %v", made.Object)
	}
	for _, patch := range []string{`{"spec":{"URL":"https://elsewhere"}}`, `{"spec":{"mount":{"ref":{"name":"other"}}}}`, `{"spec":{"cluster":"root"}}`, `{"spec":{"type":{"name":"universal","path":"root"}}}`} {
		if _, err := owner.any.Resource(workspaces).Patch(t.Context(), "trusting", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err == nil {
			t.Errorf("%s is accepted", patch)
		}
	}
	owner.deleteWorkspace("trusting")
	c.await(workspaces, "", "trusting", gone)
}

// Watch events are proxied without delay, and connections can be upgraded.
func TestMountsStream(t *testing.T) {
	t.Parallel()
	s := newMountServer(t)
	c := s.tenant(t)
	c.define(edgeDefinition())
	// The handler of an earlier request may still run, so each request has its own channel.
	lines := map[string]chan string{"watch=true": make(chan string), "": make(chan string)}
	e := newEdge(t, func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Upgrade") != "" {
			echo(w)
			return
		}
		w.WriteHeader(http.StatusOK)
		for {
			_ = http.NewResponseController(w).Flush()
			select {
			case line := <-lines[req.URL.RawQuery]:
				_, _ = io.WriteString(w, line+"\n")
			case <-req.Context().Done():
				return
			}
		}
	})
	path := c.mount("far", e.URL, e.ca())
	for query, next := range lines {
		target := path + "/api/v1/pods?" + query
		resp := must(c.alice().open(t.Context(), "GET", target, nil))(t)
		got := bufio.NewScanner(resp.Body)
		for _, line := range []string{"one", "two"} {
			next <- line
			if !got.Scan() || got.Text() != line {
				t.Errorf("%s: got %q, want %q: %v", target, got.Text(), line, got.Err())
			}
		}
		_ = resp.Body.Close()
	}
	for _, target := range []string{path + "/api/v1/namespaces/x/pods/y/exec", path + "/anything"} {
		conn := must(tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), s.tls()))(t)
		_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alices-token\r\nConnection: Upgrade\r\nUpgrade: echo/1\r\n\r\n", target)
		in := bufio.NewReader(conn)
		resp := must(http.ReadResponse(in, nil))(t)
		if resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%s: %d", target, resp.StatusCode)
		}
		for _, word := range []string{"a", "b"} {
			_, _ = fmt.Fprintf(conn, "%s\n", word)
			if got, err := in.ReadString('\n'); got != word+"\n" {
				t.Errorf("%s: got %q, %v", target, got, err)
			}
		}
		_ = conn.Close()
	}
}

// echo upgrades a connection and returns all bytes that it receives.
func echo(w http.ResponseWriter) {
	conn, in, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo/1\r\n\r\n")
	_, _ = io.Copy(conn, in)
}

// forwarder forwards TCP connections, like a load balancer.
func forwarder(t *testing.T, to string) string {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	var running sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); running.Wait() })
	running.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				return
			}
			running.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
			running.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
		}
	})
	return "https://" + l.Addr().String()
}

// A mounted workspace gives no access to the server's own endpoints and credentials.
func TestHostileMounts(t *testing.T) {
	t.Parallel()
	s := newMountServer(t)
	c := s.tenant(t)
	c.define(edgeDefinition())
	hostile := newEdge(t, func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case "/redirect":
			http.Redirect(w, req, "/clusters/root/api", http.StatusFound)
		case "/headers":
			w.Header().Set("X-Long", strings.Repeat("x", 1<<20))
		case "/hangup":
			panic(http.ErrAbortHandler)
		case "/half":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
		case "/login":
			w.Header().Set("WWW-Authenticate", "Basic")
			w.WriteHeader(http.StatusUnauthorized)
		case "/huge":
			for range 64 << 10 {
				if _, err := io.WriteString(w, strings.Repeat("x", 1<<10)); err != nil {
					return
				}
			}
		}
	})
	path := c.mount("hostile", hostile.URL, hostile.ca())
	for target, code := range map[string]int{"/redirect": http.StatusBadGateway, "/headers": http.StatusBadGateway, "/hangup": http.StatusBadGateway, "/login": http.StatusUnauthorized} {
		got := c.alice().send("GET", path+target, "")
		if got.code != code || got.header.Get("Location") != "" || got.header.Get("Www-Authenticate") != "" {
			t.Errorf("%s: %d %v %s", target, got.code, got.header, got.body)
		}
	}
	if got, err := c.alice().try("GET", path+"/half", ""); err == nil {
		t.Errorf("half an answer comes as %d %q", got.code, got.body)
	}
	resp := must(c.alice().open(t.Context(), "GET", path+"/huge", nil))(t)
	if n, err := io.Copy(io.Discard, resp.Body); n != 64<<20 || err != nil { // the response is not buffered
		t.Errorf("%d bytes come, %v", n, err)
	}
	_ = resp.Body.Close()

	at := strings.TrimPrefix(s.url, "https://")
	for name, url := range map[string]string{
		"self": s.url, "self-by-name": "https://localhost:" + at[strings.LastIndex(at, ":")+1:], "metadata": "https://169.254.169.254/latest", "unspecified": "https://0.0.0.0:" + at[strings.LastIndex(at, ":")+1:],
		"untrusted": hostile.URL, "port": "https://127.0.0.1:0",
	} {
		got := c.alice().send("GET", c.mount(name, url, s.ca)+"/api", "")
		if got.code != http.StatusBadGateway || strings.Contains(got.body, `"kind":"APIVersions"`) {
			t.Errorf("%s: %d %s", name, got.code, got.body)
		}
	}
	loop := c.mount("loop", forwarder(t, at)+"/clusters/"+string(c.name)+":loop", s.ca)
	if got := c.anonymous().send("GET", loop+"/api", ""); got.code != http.StatusLoopDetected {
		t.Errorf("what is mounted from itself: %d %s", got.code, got.body)
	}
	// A mount that leads back to this server gets no special rights: the server does not
	// trust its user headers.
	around := c.mount("around", forwarder(t, at)+"/clusters/"+string(c.name), s.ca)
	if got := c.visitor("root", "alices-token").send("GET", around+"/api/v1/secrets", ""); got.code != http.StatusForbidden && got.code != http.StatusUnauthorized {
		t.Errorf("the way round: %d %s", got.code, got.body)
	}
}

func TestMountCertificateIsChecked(t *testing.T) {
	t.Parallel()
	for _, p := range []mounts.Certificate{{CertFile: "a"}, {KeyFile: "a"}, {CertFile: filepath.Join(t.TempDir(), "a"), KeyFile: "b"}} {
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), "--mount-proxy-client-") {
			t.Errorf("%+v: %v", p, err)
		}
	}
}
