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

// TestAConflictNamesTheDefinition shows what a binding says if a CustomResourceDefinition has its
// names.
func TestAConflictNamesTheDefinition(t *testing.T) {
	t.Parallel()
	p, c := exporter(t), newTenant(t)
	must(c.crds().Create(t.Context(), crd(t, "widgets"), metav1.CreateOptions{}))(t)
	b := c.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	all, _, _ := unstructured.NestedSlice(b.Object, "status", "conditions")
	for _, one := range all {
		if one := one.(map[string]any); one["type"] == "Ready" && strings.Contains(one["message"].(string), "CustomResourceDefinition widgets.example.com has them") {
			return
		}
	}
	t.Errorf("conditions %v", all)
}
