package server_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
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
		"bound": testBoundConversion, "openapi": testConvertedOpenAPI, "others": testOthersWebhook, "storage": testChangedStorageVersion, "lies": testLyingWebhooks, "hanging": testHangingWebhook, "hanging loops": testHangingWebhookOfLoops, "failing": testFailingConversion,
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
