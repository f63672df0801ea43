package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/client"
)

type (
	workspaces = client.Client[*tenancy.Workspace, *tenancy.WorkspaceList]
	configMaps = client.Client[*corev1.ConfigMap, *corev1.ConfigMapList]
)

func newWorkspaces(t *testing.T, cfg *rest.Config, path string) *workspaces {
	t.Helper()
	c, err := client.New[*tenancy.Workspace, *tenancy.WorkspaceList](cfg, path, tenancy.GroupVersion.WithResource("workspaces"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newConfigMaps(t *testing.T, cfg *rest.Config, path string) *configMaps {
	t.Helper()
	c, err := client.New[*corev1.ConfigMap, *corev1.ConfigMapList](cfg, path, corev1.SchemeGroupVersion.WithResource("configmaps"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCluster(t *testing.T) {
	for host, want := range map[string]string{
		"https://h:6443":                            "https://h:6443/clusters/root:a",
		"https://h:6443/":                           "https://h:6443/clusters/root:a",
		"https://h/clusters/root":                   "https://h/clusters/root:a",
		"https://h/clusters/*/":                     "https://h/clusters/root:a",
		"https://h/proxy":                           "https://h/proxy/clusters/root:a",
		"https://h/proxy/clusters/root:b":           "https://h/proxy/clusters/root:a",
		"https://h/services/view/root:b/x":          "https://h/services/view/root:b/x/clusters/root:a",
		"https://h/services/view/root:b/clusters/*": "https://h/services/view/root:b/clusters/root:a",
		"https://h/clusters/root/proxy":             "https://h/clusters/root/proxy/clusters/root:a",
		"https://clusters/root":                     "https://clusters/root/clusters/root:a",
		"https://clusters/clusters/root":            "https://clusters/clusters/root:a",
		"h:6443":                                    "h:6443/clusters/root:a",
		"h:6443/clusters/root":                      "h:6443/clusters/root:a",
		"":                                          "localhost/clusters/root:a",
	} {
		cfg := &rest.Config{Host: host, BearerToken: "secret"}
		got := client.Cluster(cfg, "root:a")
		if got.Host != want || got.BearerToken != "secret" {
			t.Errorf("%q becomes %q, want %q", host, got.Host, want)
		}
		if cfg.Host != host {
			t.Errorf("the configuration for %q was changed to %q", host, cfg.Host)
		}
		if again := client.Cluster(client.Cluster(got, "*"), "root:a"); again.Host != want {
			t.Errorf("%q becomes %q by way of another cluster, want %q", host, again.Host, want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	gvr := tenancy.GroupVersion.WithResource("workspaces")
	cfg := &rest.Config{Host: "https://localhost"}
	for _, path := range []string{"", "root:", "a/b", "../b", "root:A", "**", "root?x"} {
		if _, err := client.New[*tenancy.Workspace, *tenancy.WorkspaceList](cfg, path, gvr); err == nil {
			t.Errorf("path %q is accepted", path)
		}
		if _, err := newWorkspaces(t, cfg, "root").In(path); err == nil {
			t.Errorf("path %q is accepted by In", path)
		}
	}
	for _, gvr := range []schema.GroupVersionResource{{}, tenancy.GroupVersion.WithResource(""), {Resource: "workspaces"}} {
		if _, err := client.New[*tenancy.Workspace, *tenancy.WorkspaceList](cfg, "root", gvr); err == nil {
			t.Errorf("%v is accepted", gvr)
		}
	}
	if _, err := client.New[*unstructured.Unstructured, *unstructured.UnstructuredList](cfg, "root", gvr); err == nil || !strings.Contains(err.Error(), "client-go/dynamic") {
		t.Errorf("untyped objects: %v, want an error that names the client for them", err)
	}
	if _, err := client.New[client.Object, client.List](cfg, "root", gvr); err == nil {
		t.Error("interfaces are accepted as types")
	}
	if _, err := client.New[*tenancy.Workspace, *tenancy.WorkspaceList](&rest.Config{Host: "https://[bad"}, "root", gvr); err == nil {
		t.Error("a host that is none is accepted")
	}
}

func TestRateLimit(t *testing.T) {
	free := newWorkspaces(t, &rest.Config{Host: "https://localhost"}, "root")
	if l := free.GetClient().GetRateLimiter(); l != nil && l.QPS() > 0 {
		t.Errorf("requests are limited to %v a second although nobody asked for it", l.QPS())
	}
	slow := newWorkspaces(t, &rest.Config{Host: "https://localhost", QPS: 3, Burst: 7}, "root")
	if l := slow.GetClient().GetRateLimiter(); l == nil || l.QPS() != 3 {
		t.Errorf("limiter %v, want one of 3 a second", l)
	}
	limiter := flowcontrol.NewTokenBucketRateLimiter(9, 9)
	own := newWorkspaces(t, &rest.Config{Host: "https://localhost", RateLimiter: limiter}, "root")
	if l := own.GetClient().GetRateLimiter(); l != limiter {
		t.Errorf("limiter %v, want the one of the configuration", l)
	}
}

// A recorder is the other end of a connection: it keeps what arrives and
// answers with what it was given. What a server makes of the requests is for
// the tests of the server.
type recorder struct {
	answer   string
	code     int
	requests []string
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	line := req.Method + " " + req.URL.Path
	if req.URL.RawQuery != "" {
		line += "?" + req.URL.RawQuery
	}
	if len(body) > 0 {
		line += " " + req.Header.Get("Content-Type") + " " + strings.TrimSpace(string(body))
	}
	r.requests = append(r.requests, line)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(r.code)
	_, _ = io.WriteString(w, r.answer) // a client that went away is the client's affair
}

func record(t *testing.T, code int, answer string) (*recorder, *rest.Config) {
	t.Helper()
	r := &recorder{answer: answer, code: code}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	return r, &rest.Config{Host: s.URL}
}

const workspaceJSON = `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"a","resourceVersion":"7"},"spec":{"cluster":"abc"},"status":{"phase":"Ready"}}`

// sent is how a Workspace called "a" is encoded.
const sent = `{"kind":"Workspace","apiVersion":"tenancy.kcp.io/v1alpha1","metadata":{"name":"a"},"spec":{},"status":{}}`

func TestRequests(t *testing.T) {
	const url = "/clusters/root:org/apis/tenancy.kcp.io/v1alpha1/workspaces"
	ws := &tenancy.Workspace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	dry := []string{metav1.DryRunAll}
	for name, c := range map[string]struct {
		do   func(context.Context, *workspaces) (*tenancy.Workspace, error)
		want string
	}{
		"get": {func(ctx context.Context, c *workspaces) (*tenancy.Workspace, error) {
			return c.Get(ctx, "a", metav1.GetOptions{ResourceVersion: "5"})
		}, "GET " + url + "/a?resourceVersion=5"},
		"create": {func(ctx context.Context, c *workspaces) (*tenancy.Workspace, error) {
			return c.Create(ctx, ws, metav1.CreateOptions{DryRun: dry})
		}, "POST " + url + "?dryRun=All application/json " + sent},
		"update": {func(ctx context.Context, c *workspaces) (*tenancy.Workspace, error) {
			return c.Update(ctx, ws, metav1.UpdateOptions{FieldManager: "me"})
		}, "PUT " + url + "/a?fieldManager=me application/json " + sent},
		"update status": {func(ctx context.Context, c *workspaces) (*tenancy.Workspace, error) {
			return c.UpdateStatus(ctx, ws, metav1.UpdateOptions{})
		}, "PUT " + url + "/a/status application/json " + sent},
		"patch": {func(ctx context.Context, c *workspaces) (*tenancy.Workspace, error) {
			return c.Patch(ctx, "a", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{}, "status")
		}, "PATCH " + url + "/a/status application/merge-patch+json {}"},
		"apply": {func(ctx context.Context, c *workspaces) (*tenancy.Workspace, error) {
			fields := map[string]any{"metadata": map[string]any{"labels": map[string]any{"k": "v"}, "name": "b"}, "n": int64(1) << 60}
			return c.Apply(ctx, "a", fields, metav1.ApplyOptions{FieldManager: "me", Force: true})
		}, "PATCH " + url + `/a?fieldManager=me&force=true application/apply-patch+yaml ` +
			`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"labels":{"k":"v"},"name":"a"},"n":1152921504606846976}`},
		"apply nothing": {func(ctx context.Context, c *workspaces) (*tenancy.Workspace, error) {
			return c.Apply(ctx, "a", nil, metav1.ApplyOptions{FieldManager: "me"})
		}, "PATCH " + url + `/a?fieldManager=me&force=false application/apply-patch+yaml ` +
			`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"a"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			r, cfg := record(t, http.StatusOK, workspaceJSON)
			got, err := c.do(t.Context(), newWorkspaces(t, cfg, "root:org"))
			if err != nil {
				t.Fatal(err)
			}
			if got.Name != "a" || got.ResourceVersion != "7" || got.Spec.Cluster != "abc" || got.Status.Phase != "Ready" {
				t.Errorf("got %+v", got)
			}
			if diff := cmp.Diff([]string{c.want}, r.requests); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDelete(t *testing.T) {
	r, cfg := record(t, http.StatusOK, `{"apiVersion":"v1","kind":"Status","status":"Success"}`)
	c := newWorkspaces(t, cfg, "root")
	if err := c.Delete(t.Context(), "a", *metav1.NewPreconditionDeleteOptions("u")); err != nil {
		t.Fatal(err)
	}
	if err := c.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "a=b"}); err != nil {
		t.Fatal(err)
	}
	const url, options = "/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces", `"kind":"DeleteOptions","apiVersion":"tenancy.kcp.io/v1alpha1"`
	want := []string{
		"DELETE " + url + "/a application/json {" + options + `,"preconditions":{"uid":"u"}}`,
		"DELETE " + url + "?labelSelector=a%3Db application/json {" + options + "}",
	}
	if diff := cmp.Diff(want, r.requests); diff != "" {
		t.Error(diff)
	}
}

func TestList(t *testing.T) {
	r, cfg := record(t, http.StatusOK, `{"apiVersion":"v1","kind":"ConfigMapList","metadata":{"resourceVersion":"9","continue":"c"},"items":[{"metadata":{"name":"a"},"data":{"k":"v"}}]}`)
	all := newConfigMaps(t, client.Cluster(cfg, "root:other"), "*")
	one, err := all.Namespace("ns").In("abc")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*configMaps{all, all.Namespace("ns"), one, one.Namespace("")} {
		list, err := c.List(t.Context(), metav1.ListOptions{Limit: 3, FieldSelector: "metadata.name=a"})
		if err != nil {
			t.Fatal(err)
		}
		if list.ResourceVersion != "9" || list.Continue != "c" || len(list.Items) != 1 || list.Items[0].Data["k"] != "v" {
			t.Errorf("got %+v", list)
		}
	}
	const query = "?fieldSelector=metadata.name%3Da&limit=3"
	want := []string{
		"GET /clusters/*/api/v1/configmaps" + query,
		"GET /clusters/*/api/v1/namespaces/ns/configmaps" + query,
		"GET /clusters/abc/api/v1/namespaces/ns/configmaps" + query,
		"GET /clusters/abc/api/v1/configmaps" + query,
	}
	if diff := cmp.Diff(want, r.requests); diff != "" {
		t.Error(diff)
	}
}

// statusJSON is how a server sends an error.
func statusJSON(t *testing.T, e *apierrors.StatusError) string {
	t.Helper()
	status := e.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	raw, err := json.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestWatch(t *testing.T) {
	status := statusJSON(t, apierrors.NewResourceExpired("too old"))
	r, cfg := record(t, http.StatusOK, fmt.Sprintf(`{"type":"ADDED","object":%s}
{"type":"BOOKMARK","object":{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"resourceVersion":"9"}}}
{"type":"ERROR","object":%s}
`, workspaceJSON, status))
	w, err := newWorkspaces(t, cfg, "root").Watch(t.Context(), metav1.ListOptions{ResourceVersion: "5", AllowWatchBookmarks: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var got []string
	for e := range w.ResultChan() {
		switch o := e.Object.(type) {
		case *tenancy.Workspace:
			got = append(got, fmt.Sprint(e.Type, " ", o.Name, " ", o.ResourceVersion, " ", o.Status.Phase))
		default:
			got = append(got, fmt.Sprint(e.Type, " ", apierrors.FromObject(o)))
		}
	}
	if diff := cmp.Diff([]string{string(watch.Added) + " a 7 Ready", "BOOKMARK  9 ", "ERROR too old"}, got); diff != "" {
		t.Error(diff)
	}
	if want := "GET /clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces?allowWatchBookmarks=true&resourceVersion=5&watch=true"; r.requests[0] != want {
		t.Errorf("got %s, want %s", r.requests[0], want)
	}
}

func TestErrors(t *testing.T) {
	missing := apierrors.NewNotFound(tenancy.GroupVersion.WithResource("workspaces").GroupResource(), "a")
	r, cfg := record(t, http.StatusNotFound, statusJSON(t, missing))
	c := newWorkspaces(t, cfg, "root")
	if _, err := c.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) || err.Error() != missing.Error() {
		t.Errorf("got %v, want %v", err, missing)
	}
	if _, err := c.Apply(t.Context(), "a", []string{"no object"}, metav1.ApplyOptions{}); err == nil || !strings.Contains(err.Error(), `apply workspaces "a"`) {
		t.Errorf("applying a list: %v", err)
	}
	if _, err := c.Apply(t.Context(), "a", make(chan int), metav1.ApplyOptions{}); err == nil {
		t.Error("applying what is no JSON succeeds")
	}
	if len(r.requests) != 1 {
		t.Errorf("%q arrived", r.requests)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Get(ctx, "a", metav1.GetOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that the context was cancelled", err)
	}
}
