package server_test

import (
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
)

// TestOneMissingSchema shows that the view of an export has its other resources, and what it says
// about the resource of a missing schema.
func TestOneMissingSchema(t *testing.T) {
	t.Parallel()
	p, c := exporter(t), newTenant(t)
	p.provides("pat")
	p.create(apiSchemas, peopleSchema())
	e := must(p.any.Resource(apiExports).Get(t.Context(), "widgets", metav1.GetOptions{}))(t)
	resources, _, _ := unstructured.NestedSlice(e.Object, "spec", "resources")
	resources = append(resources, map[string]any{"group": "example.com", "name": "people", "schema": "v1.people.example.com", "storage": map[string]any{"crd": map[string]any{}}})
	_ = unstructured.SetNestedSlice(e.Object, resources, "spec", "resources")
	must(p.any.Resource(apiExports).Update(t.Context(), e, metav1.UpdateOptions{}))(t)
	c.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	c.create(sharedWidgets, newWidget("w"))
	if err := p.any.Resource(apiSchemas).Delete(t.Context(), "v1.people.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	pat := must(dynamic.NewForConfig(p.view("pat").config("*")))(t)
	people := func() error { _, err := pat.Resource(peopleV2).List(t.Context(), metav1.ListOptions{}); return err }
	var err error
	for err = people(); err == nil; err = people() { // until the deletion is known
	}
	if !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "APIResourceSchema v1.people.example.com of the APIExport does not exist") {
		t.Errorf("the resource of a missing schema: %v", err)
	}
	if list := must(pat.Resource(sharedWidgets).List(t.Context(), metav1.ListOptions{}))(t); len(list.Items) != 1 {
		t.Errorf("the view has %d widgets", len(list.Items))
	}
	if code, body := p.view("pat").get("*/apis/example.com/v1"); code != http.StatusOK || !strings.Contains(body, "widgets") || strings.Contains(body, "people") {
		t.Errorf("discovery: %d %s", code, body)
	}
}

// TestAConflictNamesItsHolder shows what a binding and a definition say if another object of the workspace
// has their names: which one, and what to do. They say nothing about the export behind a binding.
func TestAConflictNamesItsHolder(t *testing.T) {
	t.Parallel()
	p, other := exporter(t), newTenant(t)
	gadgets := widgetSchema("v1", "color")
	gadgets.SetName("v1.gadgets.example.com")
	_ = unstructured.SetNestedField(gadgets.Object, "gadgets", "spec", "names", "plural")
	_ = unstructured.SetNestedField(gadgets.Object, "gadget", "spec", "names", "singular")
	other.create(apiSchemas, gadgets)
	other.create(apiExports, decoded(`{apiVersion: apis.kcp.io/v1alpha2, kind: APIExport, metadata: {name: secretive}, spec: {resources: [{name: gadgets, group: example.com, schema: v1.gadgets.example.com}]}}`))
	says := func(o *unstructured.Unstructured, of string) string {
		all, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		for _, one := range all {
			if one := one.(map[string]any); one["type"] == of {
				return one["message"].(string)
			}
		}
		return ""
	}

	defined := newTenant(t)
	must(defined.crds().Create(t.Context(), crd(t, "widgets"), metav1.CreateOptions{}))(t)
	b := defined.create(apiBindings, bindingTo("mine", p.name, "widgets"))
	if got := says(b, "Ready"); !strings.Contains(got, `"widgets" is already in use`) || !strings.HasSuffix(got, "; CustomResourceDefinition widgets.example.com has them: delete it, or this APIBinding") {
		t.Errorf("a binding beside a definition says %q", got)
	}

	c := newTenant(t)
	c.create(apiBindings, bindingTo("mine", other.name, "secretive"))
	b = c.create(apiBindings, bindingTo("second", p.name, "widgets"))
	if got := says(b, "Ready"); !strings.HasPrefix(got, `widgets.example.com: [`) || !strings.HasSuffix(got, "; APIBinding mine has them: delete it, or this APIBinding") {
		t.Errorf("a binding beside another one says %q", got)
	}
	must(c.crds().Create(t.Context(), crd(t, "gadgets"), metav1.CreateOptions{}))(t)
	d := must(c.any.Resource(definitions).Get(t.Context(), "gadgets.example.com", metav1.GetOptions{}))(t)
	if got, want := says(d, "NamesAccepted"), "\" is already in use by APIBinding mine; delete that, or choose another name"; !strings.HasSuffix(got, want) {
		t.Errorf("a definition beside a binding says %q, not %q", got, want)
	}
	for _, o := range []*unstructured.Unstructured{b, d} {
		if all, _ := o.MarshalJSON(); strings.Contains(string(all), string(other.name)) || strings.Contains(string(all), "secretive") {
			t.Errorf("the export of the other binding is in %s", all)
		}
	}
	if err := c.any.Resource(apiBindings).Delete(t.Context(), "mine", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(apiBindings, "", "second", func(o *unstructured.Unstructured) bool {
		return conditionOf(o, "Ready") == "True"
	})
}
