package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/test/stock"
)

// side is one of the two servers, or a workspace of it.
type side struct {
	base    string // URL that paths are appended to
	clients map[string]*http.Client
	config  func(token string) *rest.Config
	clean   cleaner
}

// answer is the compared part of an answer.
type answer struct {
	Status      int
	ContentType string
	Warnings    []string
	Body        any
}

func startStock(t *testing.T) *side {
	t.Helper()
	c := &stock.ControlPlane{Binary: program(t, "kube"), Dir: t.TempDir()}
	t.Cleanup(c.Stop)
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.StartControllers(); err != nil {
		t.Fatal(err)
	}
	return newSide(t, c.Config)
}

// program returns a program of test/tools. It builds the program if make has not.
func program(t *testing.T, name string) string {
	t.Helper()
	if file, err := filepath.Abs("../../bin/" + name); err == nil {
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	file, how, from := filepath.Join(t.TempDir(), name), []string{"build"}, "./cmd/"+name
	switch name {
	case "helm":
		from = "helm.sh/helm/v4/cmd/helm"
	case "ginkgo":
		from = "github.com/onsi/ginkgo/v2/ginkgo"
	case "e2e.test":
		how, from = []string{"test", "-c"}, "./e2e"
	}
	build := exec.CommandContext(t.Context(), "go", append(append([]string{"-C", "../tools"}, how...),
		"-ldflags", "-X k8s.io/component-base/version.gitVersion="+kcp.KubernetesVersion, "-o", file, from)...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return file
}

const workspaces = "/apis/tenancy.kcp.io/v1alpha1/workspaces"

// startKCP starts kcp and returns a function that creates workspaces.
func startKCP(t *testing.T) func(t *testing.T, name string) *side {
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
	in := func(path string) func(string) *rest.Config {
		return func(token string) *rest.Config {
			return &rest.Config{Host: srv.URL() + "/clusters/" + path, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: admin.CAData}}
		}
	}
	root := newSide(t, in("root"))
	return func(t *testing.T, name string) *side {
		t.Helper()
		root.must(t, workspaces, `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"`+name+`"}}`)
		s := newSide(t, in("root:"+name))
		s.must(t, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{"metadata":{"name":"user"},
			"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},
			"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"user"}]}`)
		return s
	}
}

func newSide(t *testing.T, config func(token string) *rest.Config) *side {
	t.Helper()
	s := &side{clean: newCleaner(), clients: map[string]*http.Client{}, config: func(token string) *rest.Config {
		c := config(token)
		c.WarningHandler, c.QPS = rest.NoWarnings{}, -1
		return c
	}}
	for name, token := range map[string]string{"user": stock.UserToken, "ordinary": stock.OrdinaryToken, "admin": stock.AdminToken} {
		c := s.config(token)
		h, err := rest.HTTPClientFor(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(h.CloseIdleConnections)
		s.clients[name], s.base = h, c.Host
	}
	return s
}

// must creates an object as an administrator, without a comparison.
func (s *side) must(t *testing.T, path, body string) {
	t.Helper()
	r := request{method: http.MethodPost, path: path, as: "admin", header: http.Header{"Content-Type": {"application/json"}}, body: body}
	if a := s.send(t, r); a.Status != http.StatusCreated {
		t.Fatalf("create at %s: %v", path, a)
	}
}

// send sends one request and returns the comparable part of the answer. With request.until it
// repeats the request until the answer has that status. With request.follow it requests all
// further pages. It replaces "<uid of name>" in the body with the uid of another object at the
// same path.
func (s *side) send(t *testing.T, r request) answer {
	t.Helper()
	if strings.Contains(r.body, current) {
		r.body = strings.ReplaceAll(r.body, current, s.version(t, r))
	}
	r.body = regexp.MustCompile("<uid of ([a-z]+)>").ReplaceAllStringFunc(r.body, func(m string) string {
		_, raw, err := s.once(t, request{method: http.MethodGet, path: r.path + "/" + m[len("<uid of "):len(m)-1], as: r.as})
		if err != nil {
			t.Errorf("%s: %v", r.name, err)
		}
		return fmt.Sprint(field(raw, "metadata", "uid"))
	})
	var out answer
	var raw any
	if !eventually(t, func() bool {
		var err error
		if out, raw, err = s.once(t, r); err != nil {
			t.Errorf("%s: %v", r.name, err)
		}
		return err != nil || r.until == 0 || r.until == out.Status
	}) {
		t.Errorf("%s: the status is still %d after %v, not %d", r.name, out.Status, timeout, r.until)
	}
	if next := field(raw, "metadata", "continue"); r.follow && next != nil {
		path, _, _ := strings.Cut(r.path, "&continue=")
		r.path = path + "&continue=" + url.QueryEscape(fmt.Sprint(next))
		out.Body = []any{out.Body, s.send(t, r).Body}
	}
	return out
}

// current is the placeholder for the current resource version of an object, in the body of an
// update.
const current = "<current>"

func (s *side) version(t *testing.T, r request) string {
	t.Helper()
	path, _, _ := strings.Cut(r.path, "?")
	_, raw, err := s.once(t, request{method: http.MethodGet, path: path, as: r.as})
	if err != nil {
		t.Errorf("%s: %v", r.name, err)
	}
	v, _ := field(raw, "metadata", "resourceVersion").(string)
	return v
}

// field returns a field of an object, or nil.
func field(v any, path ...string) any {
	for _, k := range path {
		m, _ := v.(map[string]any)
		v = m[k]
	}
	return v
}

// once sends one request and returns the answer and its raw body.
func (s *side) once(t *testing.T, r request) (a answer, raw any, err error) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	body := []byte(r.body)
	if r.header.Get("Content-Type") == runtime.ContentTypeProtobuf {
		if body, err = recode(body, runtime.ContentTypeProtobuf); err != nil {
			return a, nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, r.method, s.base+r.path, bytes.NewReader(body))
	if err != nil {
		return a, nil, err
	}
	if r.header != nil {
		req.Header = r.header.Clone()
	}
	res, err := s.clients[r.as].Do(req)
	if err != nil {
		return a, nil, err
	}
	defer res.Body.Close()
	a = answer{Status: res.StatusCode, ContentType: res.Header.Get("Content-Type"), Warnings: res.Header.Values("Warning")}
	if r.events > 0 && res.StatusCode == http.StatusOK {
		a.Body, err = s.events(res.Body, r.events)
		return a, nil, err
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return a, nil, err
	}
	if a.ContentType == runtime.ContentTypeProtobuf {
		if b, err = recode(b, runtime.ContentTypeJSON); err != nil {
			return a, nil, err
		}
	}
	if a.ContentType == runtime.ContentTypeYAML {
		if b, err = yaml.YAMLToJSON(b); err != nil {
			return a, nil, err
		}
	}
	if json.Unmarshal(bytes.TrimSpace(b), &raw) != nil {
		raw = string(b)
	}
	a.Body = s.clean.normal("", raw)
	if r.only != nil {
		a.Body = r.only(a.Body)
	}
	return a, raw, nil
}

// events reads the first n events of a watch.
func (s *side) events(from io.Reader, n int) (any, error) {
	var out []any
	for d := json.NewDecoder(from); len(out) < n; {
		var e any
		if err := d.Decode(&e); err != nil {
			return nil, fmt.Errorf("after %d events: %w", len(out), err)
		}
		out = append(out, s.clean.normal("", e))
	}
	return out, nil
}

// recode returns an object of a built-in kind in another encoding.
func recode(b []byte, contentType string) ([]byte, error) {
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(b, nil, nil)
	if err != nil {
		return nil, err
	}
	to, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), contentType)
	return runtime.Encode(scheme.Codecs.EncoderForVersion(to.Serializer, object.GetObjectKind().GroupVersionKind().GroupVersion()), object)
}
