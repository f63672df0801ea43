package server_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/unforked/kcp/internal/cluster"
)

var (
	flavors      = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "flavors"}
	cached       = schema.GroupVersionResource{Group: "cache.kcp.io", Version: "v1alpha1", Resource: "clustercachedresources"}
	cachedSlices = schema.GroupVersionResource{Group: "cache.kcp.io", Version: "v1alpha1", Resource: "clustercachedresourceendpointslices"}
)

const flavorNames = `{plural: flavors, singular: flavor, kind: Flavor, listKind: FlavorList}`

// flavorExport creates the schema of flavors, which lacks a field of the definition, and an export
// of it with virtual storage.
func (c *tenant) flavorExport(reference, identity string) {
	c.t.Helper()
	c.create(apiSchemas, decoded(`
apiVersion: apis.kcp.io/v1alpha1
kind: APIResourceSchema
metadata: {name: v1.flavors.example.com}
spec:
  group: example.com
  names: `+flavorNames+`
  scope: Cluster
  versions:
  - {name: v1, served: true, storage: true, subresources: {status: {}}, schema: {type: object, properties: {spec: {type: object, properties: {cpus: {type: integer}}}}}}
`))
	c.create(apiExports, decoded(`
apiVersion: apis.kcp.io/v1alpha2
kind: APIExport
metadata: {name: flavors}
spec:
  resources:
  - {name: flavors, group: example.com, schema: v1.flavors.example.com, storage: {virtual: {identityHash: "%s", reference: %s}}}
`, identity, reference))
}

// publisher returns a cluster with flavors, of which it publishes those with the label
// offer=public.
func publisher(t *testing.T) *tenant {
	p := newTenant(t)
	p.publishes()
	return p
}

// publishes makes the cluster that of a [publisher].
func (c *tenant) publishes() {
	c.t.Helper()
	c.create(definitions, decoded(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: flavors.example.com}
spec:
  group: example.com
  names: `+flavorNames+`
  scope: Cluster
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {cpus: {type: integer}, cost: {type: integer}}}}}}}
`))
	c.flavor("small", "public")
	c.flavor("hidden", "none")
	made := c.create(cached, cachedFlavors("flavors", "v1"))
	if got := conditionOf(made, "Ready") + text(made, "status", "phase") + made.GetFinalizers()[0]; got != "TrueReadycache.kcp.io/clustercachedresource" {
		c.t.Fatalf("the ClusterCachedResource is %q", got)
	}
	c.flavorExport("{apiGroup: cache.kcp.io, kind: ClusterCachedResourceEndpointSlice, name: flavors}", text(made, "status", "identityHash"))
	c.create(cachedSlices, flavorSlice("flavors", ""))
}

func cachedFlavors(name, version string) *unstructured.Unstructured {
	return decoded(`
apiVersion: cache.kcp.io/v1alpha1
kind: ClusterCachedResource
metadata: {name: %s}
spec: {group: example.com, version: %s, resource: flavors, labelSelector: {matchLabels: {offer: public}}}
`, name, version)
}

// flavorSlice is an endpoint slice. in has further fields of its reference to the
// ClusterCachedResource.
func flavorSlice(name, in string) *unstructured.Unstructured {
	return decoded(`
apiVersion: cache.kcp.io/v1alpha1
kind: ClusterCachedResourceEndpointSlice
metadata: {name: %s}
spec: {clusterCachedResource: {name: flavors%s}, export: {name: flavors}}
`, name, in)
}

func (c *tenant) flavor(name, offer string) {
	c.t.Helper()
	c.create(flavors, decoded(`{apiVersion: example.com/v1, kind: Flavor, metadata: {name: %s, labels: {offer: %s}}, spec: {cpus: 2, cost: 7}}`, name, offer))
}

// expectFlavor fails unless the next event of a watch is of a flavor.
func expectFlavor(t *testing.T, w watch.Interface, kind watch.EventType, name string) {
	t.Helper()
	e := next(t, w)
	if o, ok := e.Object.(*unstructured.Unstructured); !ok || e.Type != kind || o.GetName() != name {
		t.Fatalf("the event is %s %v, not %s of %s", e.Type, e.Object, kind, name)
	}
}

// ends waits until a watch has ended.
func ends(w watch.Interface) {
	for open := true; open; {
		_, open = <-w.ResultChan()
	}
}

func listed(list *unstructured.UnstructuredList) string {
	var all []string
	for _, o := range list.Items {
		all = append(all, o.GetName())
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// TestConsumersReadCachedObjects shows a resource with virtual storage: consumers read the objects
// that the provider selects, as the schema of the export describes them, and no others. Changes of
// objects and of the selector reach open watches.
func TestConsumersReadCachedObjects(t *testing.T) {
	t.Parallel()
	p, consumer := publisher(t), newTenant(t)
	consumer.create(apiBindings, bindingTo("flavors", p.name, "flavors"))
	ben := consumer.allow("ben")
	in := ben.any.Resource(flavors)
	for _, o := range []metav1.ListOptions{{}, {Limit: 1}, {LabelSelector: "offer"}, {FieldSelector: "metadata.name!=other"}, {ResourceVersion: "0"}} {
		if got := listed(must(in.List(t.Context(), o))(t)); got != "small" {
			t.Errorf("a list with %v has %q", o, got)
		}
	}
	if _, err := in.Get(t.Context(), "hidden", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("an object that is not selected: %v", err)
	}
	small := must(in.Get(t.Context(), "small", metav1.GetOptions{}))(t)
	if _, cost, _ := unstructured.NestedInt64(small.Object, "spec", "cost"); cost || cluster.Of(small) != p.name {
		t.Errorf("the object is %v", small)
	}
	ben.refusesWrites(in, small)
	resources := must(ben.kube.Discovery().ServerResourcesForGroupVersion("example.com/v1"))(t)
	if len(resources.APIResources) != 1 || !slices.Equal(resources.APIResources[0].Verbs, metav1.Verbs{"get", "list", "watch"}) {
		t.Errorf("discovery has %v", resources.APIResources)
	}
	openapi := string(must(ben.kube.Discovery().RESTClient().Get().AbsPath("/openapi/v3/apis/example.com/v1").DoRaw(t.Context()))(t))
	if !strings.Contains(openapi, `"get"`) || strings.Contains(openapi, `"post"`) || strings.Contains(openapi, `"delete"`) {
		t.Errorf("OpenAPI is %s", openapi)
	}

	w := must(in.Watch(t.Context(), metav1.ListOptions{ResourceVersion: must(in.List(t.Context(), metav1.ListOptions{}))(t).GetResourceVersion()}))(t)
	p.flavor("large", "public")
	p.flavor("secret", "none")
	expectFlavor(t, w, watch.Added, "large")
	p.merge(flavors, "", "large", `{"metadata":{"labels":{"offer":"none"}}}`)
	expectFlavor(t, w, watch.Deleted, "large")
	p.merge(cached, "", "flavors", `{"spec":{"labelSelector":{"matchLabels":{"offer":"none"}}}}`)
	var left []string
	for range 4 { // one leaves and three enter
		e := next(t, w)
		left = append(left, string(e.Type)+" "+e.Object.(*unstructured.Unstructured).GetName())
	}
	if got := strings.Join(left, ", "); got != "DELETED small, ADDED hidden, ADDED large, ADDED secret" {
		t.Errorf("after a change of the selector: %s", got)
	}
	p.merge(cached, "", "flavors", `{"spec":{"labelSelector":{"matchLabels":{"offer":"public"}}}}`)
	for _, name := range []string{"hidden", "large", "secret"} {
		expectFlavor(t, w, watch.Deleted, name)
	}
	expectFlavor(t, w, watch.Added, "small")
	if err := p.any.Resource(cached).Delete(t.Context(), "flavors", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expectFlavor(t, w, watch.Deleted, "small")
	if _, err := in.List(t.Context(), metav1.ListOptions{}); !apierrors.IsServiceUnavailable(err) || strings.Contains(err.Error(), string(p.name)) {
		t.Errorf("without the ClusterCachedResource: %v", err)
	}
	p.await(cached, "", "flavors", gone)
	consumer.merge(apiBindings, "", "flavors", `{"metadata":{"labels":{"a":"b"}}}`) // no end of the watch
	if err := consumer.any.Resource(apiBindings).Delete(t.Context(), "flavors", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ends(w)
	if got := listed(must(p.any.Resource(flavors).List(t.Context(), metav1.ListOptions{}))(t)); got != "hidden large secret small" {
		t.Errorf("after the deletion of a binding the provider has %q", got)
	}
}

// refusesWrites fails unless all writes of an object get 405.
func (c *tenant) refusesWrites(in dynamic.ResourceInterface, o *unstructured.Unstructured) {
	c.t.Helper()
	ctx := c.t.Context()
	another := o.DeepCopy()
	another.SetName("another")
	another.SetResourceVersion("")
	_, create := in.Create(ctx, another, metav1.CreateOptions{})
	_, update := in.Update(ctx, o, metav1.UpdateOptions{})
	_, patch := in.Patch(ctx, o.GetName(), types.MergePatchType, []byte(`{"spec":{"cpus":1}}`), metav1.PatchOptions{})
	_, status := in.UpdateStatus(ctx, o, metav1.UpdateOptions{})
	for verb, err := range map[string]error{
		"create": create, "update": update, "patch": patch, "update of the status": status, "delete": in.Delete(ctx, o.GetName(), metav1.DeleteOptions{}),
		"delete of all": in.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
	} {
		if !apierrors.IsMethodNotSupported(err) {
			c.t.Errorf("%s: %v", verb, err)
		}
	}
}

// TestAnotherPublicationEndsTheWatches shows that watches end when an export refers to another
// ClusterCachedResource, and that they do not resume without a list.
func TestAnotherPublicationEndsTheWatches(t *testing.T) {
	t.Parallel()
	p, consumer := publisher(t), newTenant(t)
	consumer.create(apiBindings, bindingTo("flavors", p.name, "flavors"))
	in := consumer.any.Resource(flavors)
	from := must(in.List(t.Context(), metav1.ListOptions{}))(t).GetResourceVersion()
	for _, kind := range []schema.GroupVersionResource{apiExports, cachedSlices, cached} { // changes that publish nothing else
		p.merge(kind, "", "flavors", `{"metadata":{"labels":{"c":"d"}}}`)
	}
	w := must(in.Watch(t.Context(), metav1.ListOptions{ResourceVersion: from}))(t)
	if err := p.any.Resource(cachedSlices).Delete(t.Context(), "flavors", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ends(w)
	if _, err := in.List(t.Context(), metav1.ListOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("without the slice: %v", err)
	}
	p.create(cachedSlices, flavorSlice("flavors", ""))
	if _, err := in.Watch(t.Context(), metav1.ListOptions{ResourceVersion: from}); !apierrors.IsResourceExpired(err) {
		t.Errorf("a watch from before: %v", err)
	}
	from = must(in.List(t.Context(), metav1.ListOptions{}))(t).GetResourceVersion()
	w = must(in.Watch(t.Context(), metav1.ListOptions{ResourceVersion: from}))(t)
	p.merge(apiExports, "", "flavors", `{"metadata":{"labels":{"a":"b"}}}`) // no end of the watch
	p.flavor("tiny", "public")
	expectFlavor(t, w, watch.Added, "tiny")
	identity := strings.Repeat("0", 64) // the identity of another resource
	p.merge(apiExports, "", "flavors", `{"spec":{"resources":[{"name":"flavors","group":"example.com","schema":"v1.flavors.example.com",
		"storage":{"virtual":{"identityHash":"`+identity+`","reference":{"apiGroup":"cache.kcp.io","kind":"ClusterCachedResourceEndpointSlice","name":"flavors"}}}}]}}`)
	ends(w)
	if _, err := in.List(t.Context(), metav1.ListOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("with another identity: %v", err)
	}
	p.merge(apiExports, "", "flavors", `{"spec":{"resources":[{"name":"flavors","group":"example.com","schema":"v1.flavors.example.com","storage":{"crd":{},"virtual":null}}]}}`)
	consumer.await(apiBindings, "", "flavors", func(o *unstructured.Unstructured) bool {
		return conditionOf(o, "BindingUpToDate") == "False APIResourceSchemaInvalid"
	})
	if _, err := in.List(t.Context(), metav1.ListOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("with another storage: %v", err)
	}
}

// TestPublicationsThatAreRefused shows what cannot be published, and by whom.
func TestPublicationsThatAreRefused(t *testing.T) {
	t.Parallel()
	p := publisher(t)
	p.allows("cache", "User", "mallory", []string{"*"}, "nothing")
	for _, verb := range []string{"get", "list"} { // but not watch
		p.allowsIn("read-"+verb, "mallory", []string{verb}, "example.com", "flavors")
	}
	p.allowsIn("publish", "mallory", []string{"*"}, "cache.kcp.io", "*")
	mallory := at(t, p.server, p.name, as("mallory"))
	cachedOf := func(name, group, resource string) *unstructured.Unstructured {
		return decoded(`{apiVersion: cache.kcp.io/v1alpha1, kind: ClusterCachedResource, metadata: {name: %s}, spec: {group: "%s", resource: %s}}`, name, group, resource)
	}
	for _, c := range []struct {
		what string
		as   *tenant
		of   schema.GroupVersionResource
		o    *unstructured.Unstructured
		why  string
	}{
		{"what others may read", mallory, cached, cachedOf("x", "example.com", "flavors"), "lack the verb watch"},
		{"the same again", p.allow("ann"), cached, cachedFlavors("again", "v1"), "ClusterCachedResource flavors is of the same"},
		{"secrets", p, cached, cachedOf("x", "", "secrets"), "kind of the server"},
		{"exports", p, cached, cachedOf("x", "apis.kcp.io", "apiexports"), "kind of the server"},
		{"workspaces", p, cached, cachedOf("x", "tenancy.kcp.io", "workspaces"), "kind of the server"},
		{"logical clusters", p, cached, cachedOf("x", "core.kcp.io", "logicalclusters"), "kind of the server"},
		{"itself", p, cached, cachedOf("x", "cache.kcp.io", "clustercachedresources"), "kind of the server"},
		{"objects of another workspace", p, cachedSlices, flavorSlice("x", ", path: root"), "path of this workspace"},
		{"an export that one may not bind", mallory, cachedSlices, flavorSlice("x", ""), "no permission to bind"},
	} {
		if _, err := c.as.any.Resource(c.of).Create(t.Context(), c.o, metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	for patch, is := range map[string]func(error) bool{
		`{"spec":{"resource":"widgets"}}`:          apierrors.IsInvalid,
		`{"spec":{"labelSelector":null}}`:          apierrors.IsForbidden,
		`{"status":{"identityHash":"forged"}}`:     func(err error) bool { return err == nil }, // ignored
		`{"metadata":{"labels":{"a":"harmless"}}}`: func(err error) bool { return err == nil },
	} {
		if _, err := mallory.any.Resource(cached).Patch(t.Context(), "flavors", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); !is(err) {
			t.Errorf("%s: %v", patch, err)
		}
	}
	if _, err := p.allow("root").any.Resource(cached).Patch(t.Context(), "flavors", types.MergePatchType, []byte(`{"status":{"identityHash":"forged"}}`), metav1.PatchOptions{}, "status"); !apierrors.IsForbidden(err) {
		t.Errorf("a forged status: %v", err)
	}
	p.create(definitions, decoded(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: rooms.example.com}
spec:
  group: example.com
  names: {plural: rooms, kind: Room}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
`))
	for resource, reason := range map[string]string{"rooms": "False ResourceNotClusterScoped", "nothing": "False NoResources"} {
		if got := conditionOf(p.create(cached, cachedOf(resource, "example.com", resource)), "ResourceValid"); got != reason {
			t.Errorf("the condition of %s is %s", resource, got)
		}
	}
}

// TestTheViewOfACachedResource shows the virtual workspace of an endpoint slice.
func TestTheViewOfACachedResource(t *testing.T) {
	t.Parallel()
	p, consumer, stranger := publisher(t), newTenant(t), newTenant(t)
	p.provides("pat")
	endpoints := func(n int) func(o *unstructured.Unstructured) bool {
		return func(o *unstructured.Unstructured) bool {
			all, _, _ := unstructured.NestedSlice(o.Object, "status", "endpoints")
			return len(all) == n && conditionOf(o, "ResourceValid") == "True"
		}
	}
	p.await(cachedSlices, "", "flavors", endpoints(0))
	consumer.create(apiBindings, bindingTo("flavors", p.name, "flavors"))
	p.await(cachedSlices, "", "flavors", endpoints(1))
	view := func(name string) *viewer {
		return &viewer{t, p.server, "/services/replication/" + string(p.name) + "/flavors/clusters/", as(name)}
	}
	pat := view("pat")
	for _, at := range []cluster.Name{"*", consumer.name} {
		in := must(dynamic.NewForConfig(pat.config(string(at))))(t).Resource(flavors)
		list := must(in.List(t.Context(), metav1.ListOptions{}))(t)
		if got := listed(list); got != "small" {
			t.Errorf("in %s are %q", at, got)
		}
		if _, err := in.Get(t.Context(), "hidden", metav1.GetOptions{}); !apierrors.IsNotFound(err) && !apierrors.IsMethodNotSupported(err) {
			t.Errorf("an object that is not selected, in %s: %v", at, err)
		}
		w := must(in.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}))(t)
		p.flavor("new"+strings.Trim(string(at), "*"), "public")
		expectFlavor(t, w, watch.Added, "new"+strings.Trim(string(at), "*"))
		w.Stop()
		if err := p.any.Resource(flavors).Delete(t.Context(), "new"+strings.Trim(string(at), "*"), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	consumer.refusesWrites(must(dynamic.NewForConfig(pat.config(string(consumer.name))))(t).Resource(flavors), must(p.any.Resource(flavors).Get(t.Context(), "small", metav1.GetOptions{}))(t))
	for _, c := range []struct {
		what, user, path string
		status           int
	}{
		{"a cluster without a binding", "pat", string(stranger.name) + "/apis/example.com/v1/flavors", http.StatusForbidden},
		{"another user", "mallory", "*/apis/example.com/v1/flavors", http.StatusForbidden},
		{"another resource", "pat", string(consumer.name) + "/api/v1/secrets", http.StatusNotFound},
		{"the definition", "pat", "*/apis/apiextensions.k8s.io/v1/customresourcedefinitions", http.StatusNotFound},
		{"metrics", "pat", "*/metrics", http.StatusNotFound},
		{"discovery", "pat", "*/apis/example.com/v1", http.StatusOK},
		{"OpenAPI", "pat", string(consumer.name) + "/openapi/v3/apis/example.com/v1", http.StatusOK},
	} {
		if status, body := view(c.user).get(c.path); status != c.status || strings.Contains(body, "hidden") {
			t.Errorf("%s: %d %s", c.what, status, body)
		}
	}
	other := &viewer{t, p.server, "/services/replication/" + string(p.name) + "/nothing/clusters/", as("mallory")}
	if status, _ := other.get("*/apis/example.com/v1/flavors"); status != http.StatusForbidden {
		t.Errorf("a slice that does not exist: %d", status)
	}
	in := must(dynamic.NewForConfig(pat.config(string(consumer.name))))(t).Resource(flavors)
	w := must(in.Watch(t.Context(), metav1.ListOptions{}))(t)
	expectFlavor(t, w, watch.Added, "small")
	if err := consumer.any.Resource(apiBindings).Delete(t.Context(), "flavors", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ends(w)
	p.await(cachedSlices, "", "flavors", endpoints(0))
}

// TestObjectsOfACachedResourceAreCounted shows status.resourceCounts: of a new ClusterCachedResource,
// after changes of the objects and of the selector, and without a count of very many.
func TestObjectsOfACachedResourceAreCounted(t *testing.T) {
	t.Parallel()
	p := publisher(t)
	made := must(p.any.Resource(cached).Get(t.Context(), "flavors", metav1.GetOptions{}))(t)
	if got := countsOf(made); got != "1 1" {
		t.Errorf("a new one counts %q", got)
	}
	counts := func(want string) {
		t.Helper()
		p.await(cached, "", "flavors", func(o *unstructured.Unstructured) bool { return countsOf(o) == want })
	}
	w := must(p.any.Resource(cached).Watch(t.Context(), metav1.ListOptions{ResourceVersion: made.GetResourceVersion()}))(t)
	const many = 60
	for i := range many {
		p.flavor(fmt.Sprint("f", i), "public")
	}
	p.flavor("other", "none")
	counts(fmt.Sprint(many+1, " ", many+1))
	p.merge(flavors, "", "hidden", `{"metadata":{"labels":{"offer":"public"}}}`)
	counts(fmt.Sprint(many+2, " ", many+2))
	p.merge(cached, "", "flavors", `{"spec":{"labelSelector":null}}`)
	counts(fmt.Sprint(many+3, " ", many+3))
	p.without(flavors, "small")
	counts(fmt.Sprint(many+2, " ", many+2))
	p.merge(cached, "", "flavors", `{"metadata":{"labels":{"the":"end"}}}`)
	writes, last := 0, ""
	for {
		o, _ := next(t, w).Object.(*unstructured.Unstructured)
		if o == nil || o.GetLabels()["the"] == "end" {
			break
		}
		got := countsOf(o)
		if _, selects, _ := unstructured.NestedMap(o.Object, "spec", "labelSelector"); got == last && selects {
			t.Errorf("%q was written twice", got)
		}
		writes, last = writes+1, got
	}
	if writes > many/2 {
		t.Errorf("%d objects were counted in %d writes", many+3, writes)
	}

	p.merge(cached, "", "flavors", `{"spec":{"labelSelector":{"matchLabels":{"offer":"public"}}}}`)
	p.create(flavors, decoded(`{apiVersion: example.com/v1, kind: Flavor, metadata: {name: large, annotations: {a: %s}}}`, strings.Repeat("x", 200<<10)))
	counts(fmt.Sprint(many+1, " ", many+1))
	for i := range 5 { // more than 1 MiB
		p.create(flavors, decoded(`{apiVersion: example.com/v1, kind: Flavor, metadata: {name: large-%d, annotations: {a: %s}}}`, i, strings.Repeat("x", 200<<10)))
	}
	counts("<nil> <nil>")
	p.merge(cached, "", "flavors", `{"spec":{"labelSelector":null}}`)
	counts(fmt.Sprint(many+8, " ", many+8))
}

// countsOf returns the counts in the status of a ClusterCachedResource.
func countsOf(o *unstructured.Unstructured) string {
	if o == nil {
		return "gone"
	}
	return text(o, "status", "resourceCounts", "local") + " " + text(o, "status", "resourceCounts", "cache")
}
