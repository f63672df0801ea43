package server_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

// For each invalid response of a webhook, the error is that of kube-apiserver, and only the
// reader gets it.
func testLyingWebhooks(t *testing.T, all *conversions) {
	c := all.tenant(t)
	const failed = "conversion webhook for convert.example.com/v1, Kind=Endpoint "
	post := fmt.Sprintf("failed: Post %q: ", all.hook.URL+"/convert?timeout=30s")
	for name, lie := range map[string]struct {
		mood mood
		want string
	}{
		"uid":       {each(func(o *unstructured.Unstructured) { o.SetUID("other") }), "returned invalid object: must have the same UID: "},
		"name":      {each(func(o *unstructured.Unstructured) { o.SetName("other") }), "returned invalid object: must have the same name: "},
		"namespace": {each(func(o *unstructured.Unstructured) { o.SetNamespace("other") }), "returned invalid object: must have the same namespace: default != other"},
		"version":   {each(func(o *unstructured.Unstructured) { o.SetAPIVersion("convert.example.com/v3") }), "returned invalid object at index 0: invalid groupVersion (expected convert.example.com/v2, received convert.example.com/v3)"},
		"kind":      {each(func(o *unstructured.Unstructured) { o.SetKind("Other") }), "returned invalid object at index 0: invalid kind (expected Endpoint, received Other)"},
		"metadata":  {each(func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"-": "x"}) }), "returned invalid metadata: metadata.labels: Invalid value"},
		"drops": {func(_ http.ResponseWriter, r *apiextensionsv1.ConversionReview) bool {
			r.Response.ConvertedObjects = nil
			return false
		}, "returned 0 objects, expected 1"},
		"adds": {func(_ http.ResponseWriter, r *apiextensionsv1.ConversionReview) bool {
			r.Response.ConvertedObjects = append(r.Response.ConvertedObjects, r.Response.ConvertedObjects...)
			return false
		}, "returned 2 objects, expected 1"},
		"other": {func(_ http.ResponseWriter, r *apiextensionsv1.ConversionReview) bool {
			r.Response.UID = "other"
			return false
		}, "failed: expected response.uid="},
		"refuses": {func(_ http.ResponseWriter, r *apiextensionsv1.ConversionReview) bool {
			r.Response.Result = metav1.Status{Status: metav1.StatusFailure, Message: "I do not like it"}
			return false
		}, "failed: I do not like it"},
		"fails":   {answers(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", http.StatusInternalServerError) }), "failed: an error on the server (\"broken\") has prevented the request from succeeding"},
		"garbage": {answers(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{") }), "failed: "},
		"redirects": {answers(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "https://127.0.0.1/")
			w.WriteHeader(http.StatusTemporaryRedirect)
		}), post + `the response is a redirect (307), which is not followed; use the final URL`},
		"endless": {answers(func(w http.ResponseWriter, _ *http.Request) {
			for b := make([]byte, 1<<20); ; {
				if _, err := w.Write(b); err != nil {
					return
				}
			}
		}), "the response exceeds 8388608 bytes"},
		"again later": {answers(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "1000000")
			http.Error(w, "later", http.StatusServiceUnavailable)
		}), "failed: "},
		"hangs up": {answers(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), post + "EOF"},
	} {
		name := c.unique(strings.ReplaceAll(name, " ", "-"))
		c.endpoint(v1, name, object{"hostPort": "h:1"})
		all.hook.moods.Store(name, lie.mood)
		_, err := c.endpoints(v2).Get(t.Context(), name, metav1.GetOptions{})
		if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), failed+lie.want) {
			if !strings.Contains(name, "endless") || err == nil || !strings.Contains(err.Error(), lie.want) {
				t.Errorf("%s: got %v, want %q", name, err, failed+lie.want)
			}
		}
		if _, err := c.endpoints(v1).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("%s in the version stored: %v", name, err)
		}
	}
}

// A webhook that hangs for one cluster does not affect other clusters that use it, or
// requests that need no conversion. The user's other requests do not wait behind it.
func testHangingWebhook(t *testing.T, all *conversions) {
	bad, good := all.tenant(t), all.tenant(t)
	name := bad.unique("hangs")
	bad.endpoint(v1, name, object{"hostPort": "h:1"})
	good.endpoint(v1, "a", object{"hostPort": "h:1"})
	hangs := all.hook.stall(t, name)
	ctx, cancel := context.WithCancel(t.Context())
	var reads sync.WaitGroup
	bad.grant("ann", rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "ann"})
	ann := bad.server.InProcess(string(bad.name), as("ann"))
	anns := must(dynamic.NewForConfig(ann))(t).Resource(endpoints(v2)).Namespace("default")
	for range 40 {
		reads.Go(func() { _, _ = anns.Get(ctx, name, metav1.GetOptions{}) })
	}
	for range 16 {
		<-hangs.reached
	}
	must(must(kubernetes.NewForConfig(ann))(t).CoreV1().ConfigMaps("default").Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{}))(t)
	for range 20 {
		wantSpec(t, must(good.endpoints(v2).Get(t.Context(), "a", metav1.GetOptions{}))(t), v2, object{"host": "h", "port": "1"})
	}
	wantSpec(t, must(bad.endpoints(v1).Get(t.Context(), name, metav1.GetOptions{}))(t), v1, object{"hostPort": "h:1"})
	if n := len(hangs.reached); n != 0 {
		t.Errorf("%d calls too many for one cluster", n)
	}
	cancel()
	hangs.end()
	reads.Wait()
	wantSpec(t, must(bad.endpoints(v2).Get(t.Context(), name, metav1.GetOptions{}))(t), v2, object{"host": "h", "port": "1"})
}

// A webhook that hangs for the server's own loops, here for deletions of namespaces, holds no
// processor of others.
func testHangingWebhookOfLoops(t *testing.T, all *conversions) {
	good := all.tenant(t)
	good.grant("ann", rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "ann"})
	good.endpoint(v1, "a", object{"hostPort": "h:1"})
	name := good.unique("held")
	hangs := all.hook.stall(t, name)
	for range 2 { // on two processors there is one seat for heavy requests, on more there are more
		bad := all.tenant(t)
		bad.create(core("namespaces"), decoded(`{apiVersion: v1, kind: Namespace, metadata: {name: held}}`))
		must(bad.any.Resource(endpoints(v1)).Namespace("held").Create(t.Context(), endpoint(v1, name, object{"hostPort": "h:1"}), metav1.CreateOptions{}))(t)
		if err := bad.kube.CoreV1().Namespaces().Delete(t.Context(), "held", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		<-hangs.reached
	}
	ann := must(dynamic.NewForConfig(good.server.InProcess(string(good.name), as("ann"))))(t)
	for range 3 {
		wantSpec(t, must(ann.Resource(endpoints(v2)).Namespace("default").Get(t.Context(), "a", metav1.GetOptions{}))(t), v2, object{"host": "h", "port": "1"})
	}
	hangs.end()
}

// An object that cannot be converted fails the lists and watches of its cluster only.
func testFailingConversion(t *testing.T, all *conversions) {
	bad, good := all.tenant(t), all.tenant(t)
	name := bad.unique("fails")
	for _, c := range []*tenant{bad, good} {
		c.endpoint(v1, "a", object{"hostPort": "h:1"})
	}
	bad.endpoint(v1, name, object{"hostPort": "h:1"})
	refuses := mood(func(_ http.ResponseWriter, r *apiextensionsv1.ConversionReview) bool {
		r.Response.Result = metav1.Status{Status: metav1.StatusFailure, Message: "no"}
		return false
	})
	all.hook.moods.Store(name, refuses)
	_, err := bad.endpoints(v2).List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "conversion webhook for convert.example.com/v1, Kind=Endpoint failed: no") {
		t.Errorf("a list: %v", err)
	}
	if n := len(must(good.endpoints(v2).List(t.Context(), metav1.ListOptions{}))(t).Items); n != 1 {
		t.Errorf("%d endpoints in another cluster", n)
	}
	w := must(bad.endpoints(v2).Watch(t.Context(), metav1.ListOptions{}))(t)
	defer w.Stop()
	last := watch.Event{Type: watch.Added}
	for last.Type == watch.Added {
		last = <-w.ResultChan()
	}
	if err := apierrors.FromObject(last.Object); last.Type != watch.Error || !strings.Contains(err.Error(), "failed: no") {
		t.Errorf("a watch ends with %v", last)
	}
	if _, err := bad.endpoints(v2).Update(t.Context(), endpoint(v2, name, object{}), metav1.UpdateOptions{}); err == nil {
		t.Error("what cannot be converted is written")
	}
	// It can be deleted in its storage version.
	if err := bad.endpoints(v1).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if n := len(must(bad.endpoints(v2).List(t.Context(), metav1.ListOptions{}))(t).Items); n != 1 {
		t.Errorf("%d endpoints are left", n)
	}
}

// Lists and watches of all clusters omit objects that cannot be converted.
func testConvertedWildcard(t *testing.T, all *conversions) {
	bad, good := all.tenant(t), all.tenant(t)
	given := func(version string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: "given.example.com", Version: version, Resource: "endpoints"}
	}
	name := bad.unique("fails")
	everywhere := must(dynamic.NewForConfig(all.server.InProcess(string(cluster.All), server.System())))(t).Resource(given(v2))
	w := must(everywhere.Watch(t.Context(), metav1.ListOptions{}))(t)
	defer w.Stop()
	all.hook.moods.Store(name, answers(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	for c, name := range map[*tenant]string{bad: name, good: good.unique("a")} {
		o := endpoint(v1, name, object{"hostPort": "h:1"})
		o.SetAPIVersion("given.example.com/v1")
		must(c.any.Resource(given(v1)).Namespace("default").Create(t.Context(), o, metav1.CreateOptions{}))(t)
	}
	for {
		e := <-w.ResultChan()
		o, _ := e.Object.(*unstructured.Unstructured)
		if o == nil || o.GetName() == name {
			t.Fatalf("got %v", e)
		}
		if cluster.Of(o) == good.name {
			if diff := cmp.Diff(object{"host": "h", "port": "1"}, specOf(o)); diff != "" || o.GetAPIVersion() != "given.example.com/v2" {
				t.Errorf("%s: %s", o.GetAPIVersion(), diff)
			}
			break
		}
	}
	found := 0
	for _, o := range must(everywhere.List(t.Context(), metav1.ListOptions{}))(t).Items {
		switch cluster.Of(&o) {
		case bad.name:
			t.Errorf("listed: %v", o)
		case good.name:
			found++
		}
	}
	if found != 1 {
		t.Errorf("%d endpoints of a cluster without fault", found)
	}
}

// failsInV2 checks that requests in v2 fail, and those in v1 succeed.
func failsInV2(t *testing.T, c *tenant, webhook apiextensionsv1.WebhookClientConfig, want ...string) {
	t.Helper()
	c.define(endpointDefinition(v1, webhook))
	must(c.endpoints(v1).List(t.Context(), metav1.ListOptions{}))(t)
	_, err := c.endpoints(v2).Get(t.Context(), "a", metav1.GetOptions{})
	for _, part := range append(want, "conversion webhook for convert.example.com/v1, Kind=Endpoint failed: Post ") {
		if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want %q", err, part)
		}
	}
}

// A definition with a service webhook is accepted; conversions fail with an error.
func testServiceWebhook(t *testing.T, all *conversions) {
	c := all.tenant(t)
	c.endpoint(v1, "a", object{"hostPort": "h:1"})
	service := apiextensionsv1.WebhookClientConfig{Service: &apiextensionsv1.ServiceReference{Namespace: "default", Name: "converter", Port: new(int32(443))}}
	failsInV2(t, c, service, `"https://converter.default.svc:443/?timeout=30s": service "converter" not found: services do not exist here; use clientConfig.url`)
}

// The server refuses calls to forbidden addresses. After a correction of the URL, conversions
// succeed.
func testRefusedWebhooks(t *testing.T, all *conversions) {
	c := all.tenant(t)
	c.endpoint(v1, "a", object{"hostPort": "h:1"})
	at := func(url string) apiextensionsv1.WebhookClientConfig {
		return apiextensionsv1.WebhookClientConfig{URL: &url}
	}
	failsInV2(t, c, at(all.server.url+"/convert"), "it is an address of the server or its etcd, and no flag changes that")
	failsInV2(t, c, at("https://10.0.0.1/convert"), "refusing to call 10.0.0.1:443 for a logical cluster: 10.0.0.1 is private (10.0.0.0/8)", "--tenant-egress-allow-cidrs=10.0.0.1/32")
	failsInV2(t, c, at("https://169.254.169.254/convert"), "169.254.169.254 is link-local, where clouds hand out credentials (169.254.0.0/16), and no flag changes that")
	c.define(endpointDefinition(v1, all.hook.client()))
	wantSpec(t, must(c.endpoints(v2).Get(t.Context(), "a", metav1.GetOptions{}))(t), v2, object{"host": "h", "port": "1"})
}

// Each cluster uses its own webhook, even if another cluster defines the same resource.
func testOthersWebhook(t *testing.T, all *conversions) {
	mine, other := all.tenant(t), all.tenant(t)
	hook := newConverter(t)
	other.define(endpointDefinition(v1, hook.client()))
	for c, converter := range map[*tenant]*converter{mine: hook, other: all.hook} {
		name := c.unique("a")
		converter.moods.Store(name, mood(func(http.ResponseWriter, *apiextensionsv1.ConversionReview) bool {
			t.Errorf("%s is shown to another's webhook", name)
			return false
		}))
		c.endpoint(v1, name, object{"hostPort": "h:1"})
		wantSpec(t, must(c.endpoints(v2).Get(t.Context(), name, metav1.GetOptions{}))(t), v2, object{"host": "h", "port": "1"})
	}
}
