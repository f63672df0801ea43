package server_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// unevenSchema has two versions. Each has fields that the other lacks, also in the items of a list.
func unevenSchema() *unstructured.Unstructured {
	o := peopleSchema()
	var versions []any
	for _, text := range []string{
		`{name: v1, served: true, storage: false, schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}, note: {type: string}, list: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k], items: {type: object, required: [k], properties: {k: {type: string}, old: {type: string}}}}}}}}}`,
		`{name: v2, served: true, storage: true, schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}, color: {type: string}, box: {type: object, properties: {deep: {type: integer}, more: {type: integer}}}, set: {type: array, x-kubernetes-list-type: set, items: {type: string}}, list: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k], items: {type: object, required: [k], properties: {k: {type: string}, new: {type: string}}}}}}}}}`,
	} {
		versions = append(versions, decoded("%s", text).Object)
	}
	_ = unstructured.SetNestedSlice(o.Object, versions, "spec", "versions")
	return o
}

// TestAppliesOfFieldsWithoutARule shows server-side apply in two versions of which each has fields that the other
// lacks and that nothing converts, with an APIConversion, without one, and for a CustomResourceDefinition. Each
// manager keeps the fields of its version.
func TestAppliesOfFieldsWithoutARule(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(t *testing.T) *tenant{
		"with an APIConversion": func(t *testing.T) *tenant {
			return unevenConsumer(t, decoded(`{apiVersion: apis.kcp.io/v1alpha1, kind: APIConversion, metadata: {name: v1.people.example.com}, spec: {conversions: [
  {from: v1, to: v2, rules: [{field: .spec.size, destination: .spec.size}]}, {from: v2, to: v1, rules: []}]}}`))
		},
		"without": func(t *testing.T) *tenant { return unevenConsumer(t, nil) },
		"of a definition": func(t *testing.T) *tenant {
			c := newTenant(t)
			o := unevenSchema()
			versions, _, _ := unstructured.NestedSlice(o.Object, "spec", "versions")
			for _, v := range versions {
				v := v.(map[string]any)
				v["schema"] = map[string]any{"openAPIV3Schema": v["schema"]}
			}
			_ = unstructured.SetNestedSlice(o.Object, versions, "spec", "versions")
			d := &apiextensionsv1.CustomResourceDefinition{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, d); err != nil {
				t.Fatal(err)
			}
			d.Name = "people.example.com"
			c.newKind(d)
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			appliesUnevenly(t, prepare(t))
		})
	}
}

// unevenConsumer returns a cluster that binds people with an [unevenSchema].
func unevenConsumer(t *testing.T, rules *unstructured.Unstructured) *tenant {
	p, c := newTenant(t), newTenant(t)
	p.create(apiSchemas, unevenSchema())
	if rules != nil {
		p.create(apiConversions, rules)
	}
	p.create(apiExports, decoded(`{apiVersion: apis.kcp.io/v1alpha2, kind: APIExport, metadata: {name: widgets}, spec: {resources: [{name: people, group: example.com, schema: v1.people.example.com}]}}`))
	c.create(apiBindings, bindingTo("people", p.name, "widgets"))
	return c
}

func appliesUnevenly(t *testing.T, c *tenant) {
	apply := func(at schema.GroupVersionResource, by, spec string, force bool) (*unstructured.Unstructured, error) {
		return c.people(at).Apply(t.Context(), "ada", newPerson(at.Version, spec), metav1.ApplyOptions{FieldManager: by, Force: force})
	}
	for _, step := range []struct {
		at              schema.GroupVersionResource
		by, spec        string
		inV2            string
		managed, absent string
	}{
		{peopleV1, "one", `{size: 1, note: hello, list: [{k: a, old: x}]}`, `{"list":[{"k":"a"}],"size":1}`, "one in v1", ""},
		{peopleV2, "two", `{color: red, list: [{k: a, new: "n"}]}`, `{"color":"red","list":[{"k":"a","new":"n"}],"size":1}`, "two in v2", ""},
		{peopleV2, "two", `{color: blue, box: {deep: 1, more: 2}, list: [{k: a, new: "m"}, {k: c, new: "o"}]}`, `{"box":{"deep":1,"more":2},"color":"blue","list":[{"k":"a","new":"m"},{"k":"c","new":"o"}],"size":1}`, "two in v2", ""},
		{peopleV2, "two", `{box: {more: 2}, list: [{k: a}]}`, `{"box":{"more":2},"list":[{"k":"a"}],"size":1}`, "two in v2", ""},
		{peopleV2, "two", `{color: green, set: [x, "y"]}`, `{"color":"green","list":[{"k":"a"}],"set":["x","y"],"size":1}`, "two in v2", ""},
		{peopleV2, "two", `{color: green, set: ["y"]}`, `{"color":"green","list":[{"k":"a"}],"set":["y"],"size":1}`, "two in v2", ""},
		// The storage version does not have the note, and a write in v1 drops what v1 does not have.
		{peopleV1, "one", `{size: 2, note: again, list: [{k: a, old: x}, {k: b}]}`, `{"list":[{"k":"a"},{"k":"b"}],"size":2}`, "one in v1", ""},
		{peopleV2, "two", `{color: blue}`, `{"color":"blue","list":[{"k":"a"},{"k":"b"}],"size":2}`, "two in v2", ""},
		{peopleV1, "one", `{note: alone}`, `{}`, "one in v1", ""},
		{peopleV2, "one", `{size: 3}`, `{"size":3}`, "one in v2", "one in v1"},
	} {
		applied, err := apply(step.at, step.by, step.spec, false)
		if err != nil {
			t.Fatalf("%s applies %s in %s: %v", step.by, step.spec, step.at.Version, err)
		}
		uncarried(t, applied)
		now := must(c.people(peopleV2).Get(t.Context(), "ada", metav1.GetOptions{}))(t)
		if got, _ := json.Marshal(now.Object["spec"]); string(got) != step.inV2 {
			t.Errorf("%s applied %s in %s: %s, not %s", step.by, step.spec, step.at.Version, got, step.inV2)
		}
		if all := managersOf(now); !slices.Contains(all, step.managed) || step.absent != "" && slices.Contains(all, step.absent) {
			t.Errorf("%s applied %s in %s: managers are %v", step.by, step.spec, step.at.Version, all)
		}
	}
	if _, err := apply(peopleV1, "three", `{size: 9}`, false); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `conflict with "one": .spec.size`) {
		t.Errorf("a field of another version's manager: %v", err)
	}
	for _, at := range []schema.GroupVersionResource{peopleV1, peopleV2} {
		uncarried(t, must(c.people(at).Get(t.Context(), "ada", metav1.GetOptions{}))(t))
	}
	updated := must(c.people(peopleV1).Get(t.Context(), "ada", metav1.GetOptions{}))(t)
	_ = unstructured.SetNestedField(updated.Object, int64(5), "spec", "size")
	updated = must(c.people(peopleV1).Update(t.Context(), updated, metav1.UpdateOptions{FieldManager: "four"}))(t)
	if all := managersOf(updated); !slices.Contains(all, "four in v1") || !slices.Contains(all, "two in v2") {
		t.Errorf("after an update managers are %v", all)
	}
}

// uncarried checks that the server keeps its own annotations to itself.
func uncarried(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	for key := range o.GetAnnotations() {
		if strings.Contains(key, "conversion") {
			t.Errorf("in %s the annotations are %v", o.GetAPIVersion(), o.GetAnnotations())
		}
	}
}

// managersOf returns the managers of the fields of an object, as "<name> in <version>".
func managersOf(o *unstructured.Unstructured) (all []string) {
	for _, m := range o.GetManagedFields() {
		all = append(all, m.Manager+" in "+m.APIVersion[strings.LastIndex(m.APIVersion, "/")+1:])
	}
	return all
}
