package server_test

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

// schemas returns the client of the schemas behind the bindings of a cluster.
func (c *tenant) schemas(name string) dynamic.ResourceInterface {
	return must(dynamic.NewForConfig((&viewer{c.t, c.server, "/services/apiresourceschema/" + string(c.name) + "/clusters/", as(name)}).config("*")))(c.t).Resource(apiSchemas)
}

// TestConsumersReadTheirSchemas shows the view of the schemas behind bindings: what is in it, that
// a watch follows bindings and schemas, and that an old resource version leads to a new list.
func TestConsumersReadTheirSchemas(t *testing.T) {
	t.Parallel()
	p, people, c := exporter(t), peopleExporter(t, ""), newTenant(t)
	p.create(apiSchemas, widgetSchema("v2", "secret")) // not exported
	c.allows("read", "User", "carl", []string{"get"}, "apibindings")
	carl := c.schemas("carl")
	empty := must(carl.List(t.Context(), metav1.ListOptions{}))(t)
	for _, s := range empty.Items {
		if cluster.Of(&s) != cluster.Root { // those of built-in exports
			t.Fatalf("without further bindings there is %s", s.GetName())
		}
	}
	w := must(carl.Watch(t.Context(), metav1.ListOptions{ResourceVersion: empty.GetResourceVersion()}))(t)
	defer w.Stop()
	expect := func(kind watch.EventType, of *tenant, name string) {
		t.Helper()
		e := next(t, w)
		if o, ok := e.Object.(*unstructured.Unstructured); !ok || e.Type != kind || o.GetName() != name || cluster.Of(o) != of.name {
			t.Fatalf("%s %v, want %s %s", e.Type, e.Object, kind, name)
		}
	}
	c.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	expect(watch.Added, p, "v1.widgets.example.com")
	c.create(apiBindings, bindingTo("people", people.name, "widgets"))
	expect(watch.Added, people, "v1.people.example.com")
	must(p.any.Resource(apiSchemas).Patch(t.Context(), "v1.widgets.example.com", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}))(t)
	expect(watch.Modified, p, "v1.widgets.example.com")
	must(p.any.Resource(apiSchemas).Patch(t.Context(), "v2.widgets.example.com", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}))(t)
	if _, err := carl.Watch(t.Context(), metav1.ListOptions{ResourceVersion: empty.GetResourceVersion()}); !apierrors.IsResourceExpired(err) {
		t.Errorf("a watch from an old resource version: %v", err)
	}
	list := must(carl.List(t.Context(), metav1.ListOptions{LabelSelector: "a=b"}))(t)
	if len(list.Items) != 1 || list.Items[0].GetName() != "v1.widgets.example.com" {
		t.Errorf("with a=b: %v", names(list))
	}
	if got := must(carl.Get(t.Context(), "v1.people.example.com", metav1.GetOptions{}))(t); text(got, "spec", "names", "kind") != "Person" {
		t.Errorf("got %v", got.Object)
	}
	if _, err := carl.Get(t.Context(), "v2.widgets.example.com", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a schema of the provider that the consumer does not bind: %v", err)
	}
	if err := c.any.Resource(apiBindings).Delete(t.Context(), "people", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect(watch.Deleted, people, "v1.people.example.com")
}

// TestOthersReadNoSchemas shows who may use the view, and that it only reads.
func TestOthersReadNoSchemas(t *testing.T) {
	t.Parallel()
	p, c := exporter(t), newTenant(t)
	c.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	c.allows("enter", "User", "eve", []string{"list"}, "apiexports")
	for _, name := range []string{"eve", "mallory"} {
		if _, err := c.schemas(name).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("%s lists: %v", name, err)
		}
	}
	nowhere := (&viewer{t, c.server, "/services/apiresourceschema/" + string(cluster.NewName()) + "/clusters/", as("mallory")}).config("*")
	_, err := must(dynamic.NewForConfig(nowhere))(t).Resource(apiSchemas).List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("of a cluster that does not exist: %v", err)
	}
	config := (&viewer{t, c.server, "/services/apiresourceschema/" + string(c.name) + "/clusters/", server.System()}).config("*")
	all := must(dynamic.NewForConfig(config))(t)
	if err := all.Resource(apiSchemas).Delete(t.Context(), "v1.widgets.example.com", metav1.DeleteOptions{}); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("delete: %v", err)
	}
	if _, err := all.Resource(apiExports).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("exports: %v", err)
	}
	groups := must(must(discovery.NewDiscoveryClientForConfig(config))(t).ServerResourcesForGroupVersion("apis.kcp.io/v1alpha1"))(t)
	if len(groups.APIResources) != 1 || strings.Join(groups.APIResources[0].Verbs, ",") != "get,list,watch" {
		t.Errorf("discovery: %v", groups.APIResources)
	}
}
