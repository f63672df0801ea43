package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

// A conversions is a server that serves Endpoints, with their webhook.
type conversions struct {
	server *running
	hook   *converter
}

func loopback() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }

func newConversions(t *testing.T) *conversions {
	t.Helper()
	hook := newConverter(t)
	listener := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	given := endpointDefinition(v1, hook.client())
	given.Name, given.Spec.Group = "endpoints.given.example.com", "given.example.com"
	s := must(server.New(t.Context(), server.Config{
		Dir: t.TempDir(), NoSync: true, Listener: listener, ExternalURL: "https://" + listener.Addr().String(), EgressAllow: loopback(),
		Kinds: []*apiextensionsv1.CustomResourceDefinition{given},
	}))(t)
	t.Cleanup(s.Close)
	return &conversions{&running{Server: s, url: "https://" + listener.Addr().String()}, hook}
}

// tenant returns a new logical cluster of the server.
func (c *conversions) tenant(t *testing.T) *tenant {
	t.Helper()
	o := &tenant{t: t, server: c.server, name: cluster.NewName()}
	if err := c.server.MakeCluster(t.Context(), o.name); err != nil {
		t.Fatal(err)
	}
	o.kube = must(kubernetes.NewForConfig(o.config()))(t)
	o.any = must(dynamic.NewForConfig(o.config()))(t)
	o.define(endpointDefinition(v1, c.hook.client()))
	return o
}

// define creates or updates a definition in the tenant's cluster.
func (c *tenant) define(d *apiextensionsv1.CustomResourceDefinition) {
	c.t.Helper()
	content := must(runtime.DefaultUnstructuredConverter.ToUnstructured(d))(c.t)
	unstructured.RemoveNestedField(content, "status")
	o := &unstructured.Unstructured{Object: content}
	o.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	definitions := c.any.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	old, err := definitions.Get(c.t.Context(), d.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = definitions.Create(c.t.Context(), o, metav1.CreateOptions{})
	} else if err == nil {
		o.SetResourceVersion(old.GetResourceVersion())
		_, err = definitions.Update(c.t.Context(), o, metav1.UpdateOptions{})
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *tenant) endpoints(version string) dynamic.ResourceInterface {
	return c.any.Resource(endpoints(version)).Namespace("default")
}

// unique returns a name with the tenant's cluster, so that the webhook can distinguish
// tenants.
func (c *tenant) unique(name string) string { return name + "-" + string(c.name) }

func (c *tenant) endpoint(version, name string, spec map[string]any) *unstructured.Unstructured {
	c.t.Helper()
	return must(c.endpoints(version).Create(c.t.Context(), endpoint(version, name, spec), metav1.CreateOptions{}))(c.t)
}

type object = map[string]any

func specOf(o *unstructured.Unstructured) map[string]any {
	spec, _, _ := unstructured.NestedMap(o.Object, "spec")
	return spec
}

func wantSpec(t *testing.T, o *unstructured.Unstructured, version string, spec map[string]any) {
	t.Helper()
	if o.GetAPIVersion() != "convert.example.com/"+version {
		t.Errorf("%s is in %s, want %s", o.GetName(), o.GetAPIVersion(), version)
	}
	if diff := cmp.Diff(spec, specOf(o)); diff != "" {
		t.Errorf("%s in %s: %s", o.GetName(), version, diff)
	}
}

// Each subtest has its own logical clusters. All use the same webhook.
func TestConversion(t *testing.T) {
	t.Parallel()
	c := newConversions(t)
	for name, test := range map[string]func(*testing.T, *conversions){
		"reads": testConvertedReads, "writes": testConvertedWrites, "apply": testConvertedApply, "watch": testConvertedWatch,
		"openapi": testConvertedOpenAPI, "others": testOthersWebhook, "storage": testChangedStorageVersion, "lies": testLyingWebhooks, "hanging": testHangingWebhook, "failing": testFailingConversion,
		"all clusters": testConvertedWildcard, "service": testServiceWebhook, "refused": testRefusedWebhooks, "metrics": testConversionMetrics,
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t, c) })
	}
}

func testConvertedReads(t *testing.T, all *conversions) {
	c := all.tenant(t)
	made := c.endpoint(v1, "a", object{"hostPort": "h:1"})
	c.endpoint(v2, "b", object{"host": "h", "port": "2"})
	for version, want := range map[string][]object{
		v1: {{"hostPort": "h:1"}, {"hostPort": "h:2"}},
		v2: {{"host": "h", "port": "1"}, {"host": "h", "port": "2"}},
	} {
		list := must(c.endpoints(version).List(t.Context(), metav1.ListOptions{}))(t)
		for i, name := range []string{"a", "b"} {
			wantSpec(t, must(c.endpoints(version).Get(t.Context(), name, metav1.GetOptions{}))(t), version, want[i])
			wantSpec(t, &list.Items[i], version, want[i])
		}
		if n := len(list.Items); n != 2 {
			t.Errorf("%d endpoints in %s", n, version)
		}
	}
	got := must(c.endpoints(v2).Get(t.Context(), "a", metav1.GetOptions{}))(t)
	if got.GetUID() != made.GetUID() || got.GetResourceVersion() != made.GetResourceVersion() || cluster.Of(got) != c.name {
		t.Errorf("conversion changes whose it is: %v", got)
	}
}

func testConvertedWrites(t *testing.T, all *conversions) {
	c := all.tenant(t)
	c.endpoint(v1, "a", object{"hostPort": "h:1"})
	o := must(c.endpoints(v2).Get(t.Context(), "a", metav1.GetOptions{}))(t)
	o.Object["spec"] = object{"host": "h", "port": "2"}
	wantSpec(t, must(c.endpoints(v2).Update(t.Context(), o, metav1.UpdateOptions{}))(t), v2, object{"host": "h", "port": "2"})
	for _, p := range []struct {
		kind types.PatchType
		text string
		port string
	}{
		{types.MergePatchType, `{"spec":{"port":"3"}}`, "3"},
		{types.JSONPatchType, `[{"op":"replace","path":"/spec/port","value":"4"}]`, "4"},
	} {
		wantSpec(t, must(c.endpoints(v2).Patch(t.Context(), "a", p.kind, []byte(p.text), metav1.PatchOptions{}))(t), v2, object{"host": "h", "port": p.port})
		wantSpec(t, must(c.endpoints(v1).Get(t.Context(), "a", metav1.GetOptions{}))(t), v1, object{"hostPort": "h:" + p.port})
	}
	dry := must(c.endpoints(v2).Patch(t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"port":"5"}}`), metav1.PatchOptions{DryRun: []string{"All"}}))(t)
	wantSpec(t, dry, v2, object{"host": "h", "port": "5"})
	before := must(c.endpoints(v2).Get(t.Context(), "a", metav1.GetOptions{}))(t)
	if after := must(c.endpoints(v2).Update(t.Context(), before, metav1.UpdateOptions{}))(t); after.GetResourceVersion() != before.GetResourceVersion() {
		t.Error("an update that changes nothing is written")
	}
	if err := c.endpoints(v2).Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	c.await(endpoints(v1), "default", "a", gone)
}

// Ownership of fields is converted between versions.
func testConvertedApply(t *testing.T, all *conversions) {
	c := all.tenant(t)
	apply := func(version, manager string, spec object) (*unstructured.Unstructured, error) {
		return c.endpoints(version).Apply(t.Context(), "a", endpoint(version, "a", spec), metav1.ApplyOptions{FieldManager: manager})
	}
	if _, err := apply(v1, "first", object{"hostPort": "h:1", "note": "n"}); err != nil {
		t.Fatal(err)
	}
	o, err := apply(v2, "second", object{"host": "h", "port": "1"})
	if err != nil {
		t.Fatal(err)
	}
	wantSpec(t, o, v2, object{"host": "h", "port": "1", "note": "n"})
	_, err = apply(v2, "second", object{"host": "h", "port": "2"})
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `conflict with "first": .spec.hostPort`) {
		t.Errorf("a field of another manager, in another version, is changed: %v", err)
	}
	o, err = apply(v2, "first", object{"host": "h", "port": "1"})
	if err != nil {
		t.Fatal(err)
	}
	wantSpec(t, o, v2, object{"host": "h", "port": "1"}) // a field that it owned in v1 and no longer applies is removed
	wantSpec(t, must(c.endpoints(v1).Get(t.Context(), "a", metav1.GetOptions{}))(t), v1, object{"hostPort": "h:1"})
}

func testConvertedWatch(t *testing.T, all *conversions) {
	c := all.tenant(t)
	c.endpoint(v1, "a", object{"hostPort": "h:1"})
	seen := map[string]watch.Interface{}
	for _, version := range []string{v1, v2} {
		seen[version] = must(c.endpoints(version).Watch(t.Context(), metav1.ListOptions{}))(t)
		defer seen[version].Stop()
	}
	must(c.endpoints(v2).Patch(t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"port":"2"}}`), metav1.PatchOptions{}))(t)
	if err := c.endpoints(v1).Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for version, want := range map[string][]object{
		v1: {{"hostPort": "h:1"}, {"hostPort": "h:2"}, {"hostPort": "h:2"}},
		v2: {{"host": "h", "port": "1"}, {"host": "h", "port": "2"}, {"host": "h", "port": "2"}},
	} {
		for i, spec := range want {
			e, ok := <-seen[version].ResultChan()
			o, isObject := e.Object.(*unstructured.Unstructured)
			if !ok || !isObject || e.Type != []watch.EventType{watch.Added, watch.Modified, watch.Deleted}[i] {
				t.Fatalf("event %d in %s is %v", i, version, e)
			}
			wantSpec(t, o, version, spec)
		}
	}
}

func testConvertedOpenAPI(t *testing.T, all *conversions) {
	c := all.tenant(t)
	for version, field := range map[string]string{v1: "hostPort", v2: "port"} {
		text := string(must(c.kube.Discovery().RESTClient().Get().AbsPath("/openapi/v3/apis/convert.example.com/" + version).DoRaw(t.Context()))(t))
		if !strings.Contains(text, `"`+field+`"`) {
			t.Errorf("OpenAPI of %s does not have %s", version, field)
		}
	}
}

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

// Labels of metrics contain no values that tenants choose.
func testConversionMetrics(t *testing.T, all *conversions) {
	testConvertedReads(t, all)
	const metric = "apiserver_crd_conversion_webhook_duration_seconds"
	found := false
	for _, family := range must(legacyregistry.DefaultGatherer.Gather())(t) {
		if family.GetName() != metric {
			continue
		}
		for _, m := range family.GetMetric() {
			found = true
			for _, l := range m.GetLabel() {
				if l.GetName() != "succeeded" && l.GetValue() != "unexpected" {
					t.Errorf("%s has a series with %s=%q", metric, l.GetName(), l.GetValue())
				}
			}
		}
	}
	if !found {
		t.Errorf("there is no %s", metric)
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

// A change of the storage version does not rewrite stored objects.
func testChangedStorageVersion(t *testing.T, all *conversions) {
	c := all.tenant(t)
	c.endpoint(v1, "a", object{"hostPort": "h:1"})
	c.endpoint(v1, "b", object{"hostPort": "h:2"})
	c.define(endpointDefinition(v2, all.hook.client()))
	checkMixedVersions(t, c)
}

// After a restart with another storage version, stored objects are readable.
func TestChangedStorageVersion(t *testing.T) {
	t.Parallel()
	hook, dir, name := newConverter(t), t.TempDir(), cluster.NewName()
	c, stop := restartable(t, dir, name, endpointDefinition(v1, hook.client()))
	c.endpoint(v1, "a", object{"hostPort": "h:1"})
	c.endpoint(v1, "b", object{"hostPort": "h:2"})
	stop()
	c, _ = restartable(t, dir, name, endpointDefinition(v2, hook.client()))
	checkMixedVersions(t, c)
}

// checkMixedVersions checks that objects stored in v1 are readable, and that their next write
// stores them in v2.
func checkMixedVersions(t *testing.T, c *tenant) {
	t.Helper()
	stored := func(name string) string {
		raw := must(c.server.Store().RawClient().Get(t.Context(), "/registry/c/convert.example.com/endpoints/-/"+string(c.name)+"/default/"+name))(t)
		var o struct{ APIVersion string }
		if len(raw.Kvs) != 1 || json.Unmarshal(raw.Kvs[0].Value, &o) != nil {
			t.Fatalf("%s is not stored", name)
		}
		return strings.TrimPrefix(o.APIVersion, "convert.example.com/")
	}
	c.endpoint(v1, "c", object{"hostPort": "h:3"})
	must(c.endpoints(v1).Patch(t.Context(), "b", types.MergePatchType, []byte(`{"spec":{"hostPort":"h:4"}}`), metav1.PatchOptions{}))(t)
	got := map[string]string{}
	for _, n := range []string{"a", "b", "c"} {
		got[n] = stored(n)
	}
	if diff := cmp.Diff(map[string]string{"a": v1, "b": v2, "c": v2}, got); diff != "" {
		t.Error("stored versions: " + diff)
	}
	for version, want := range map[string][]object{
		v1: {{"hostPort": "h:1"}, {"hostPort": "h:4"}, {"hostPort": "h:3"}},
		v2: {{"host": "h", "port": "1"}, {"host": "h", "port": "4"}, {"host": "h", "port": "3"}},
	} {
		list := must(c.endpoints(version).List(t.Context(), metav1.ListOptions{}))(t)
		if len(list.Items) != 3 {
			t.Fatalf("%d endpoints in %s", len(list.Items), version)
		}
		for i := range want {
			wantSpec(t, &list.Items[i], version, want[i])
		}
	}
}
