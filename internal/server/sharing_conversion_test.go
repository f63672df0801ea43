package server_test

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

var (
	apiConversions = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha1", Resource: "apiconversions"}
	peopleV1       = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "people"}
	peopleV2       = schema.GroupVersionResource{Group: "example.com", Version: "v2", Resource: "people"}
)

func peopleSchema() *unstructured.Unstructured {
	return decoded(`
apiVersion: apis.kcp.io/v1alpha1
kind: APIResourceSchema
metadata: {name: v1.people.example.com}
spec:
  group: example.com
  names: {plural: people, singular: person, kind: Person, listKind: PersonList}
  conversion: {strategy: None}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: false, schema: {type: object, properties: {spec: {type: object, properties: {name: {type: string}}}}}}
  - {name: v2, served: true, storage: true, schema: {type: object, properties: {spec: {type: object, properties: {first: {type: string}, last: {type: string}, color: {type: string}}}}}}
`)
}

// peopleConversion joins the names in v1 with a text between them.
func peopleConversion(between string) *unstructured.Unstructured {
	return decoded(`
apiVersion: apis.kcp.io/v1alpha1
kind: APIConversion
metadata: {name: v1.people.example.com}
spec:
  conversions:
  - from: v2
    to: v1
    rules: [{field: .spec, destination: .spec.name, transformation: "self.first + '%[1]s' + self.last"}]
    preserve: [.spec.color]
  - from: v1
    to: v2
    rules:
    - {field: .spec.name, destination: .spec.first, transformation: "self.split('%[1]s')[0]"}
    - {field: .spec.name, destination: .spec.last, transformation: "self.split('%[1]s')[1]"}
`, between)
}

// peopleExporter returns a cluster that exports people, with a conversion.
func peopleExporter(t *testing.T, between string) *tenant {
	p := newTenant(t)
	p.create(apiSchemas, peopleSchema())
	if between != "" {
		p.create(apiConversions, peopleConversion(between))
	}
	p.create(apiExports, decoded(`{apiVersion: apis.kcp.io/v1alpha2, kind: APIExport, metadata: {name: widgets}, spec: {resources: [{name: people, group: example.com, schema: v1.people.example.com}]}}`))
	return p
}

func (c *tenant) people(r schema.GroupVersionResource) dynamic.ResourceInterface {
	return c.any.Resource(r).Namespace("default")
}

func newPerson(version, spec string) *unstructured.Unstructured {
	return decoded(`{apiVersion: example.com/%s, kind: Person, metadata: {name: ada}, spec: %s}`, version, spec)
}

func nameOf(o *unstructured.Unstructured) string {
	all := text(o, "spec", "name") + text(o, "spec", "first") + "|" + text(o, "spec", "last") + "|" + text(o, "spec", "color")
	return strings.ReplaceAll(all, "<nil>", "")
}

// TestRulesConvertObjects shows the rules of an APIConversion in gets, lists, watches and writes
// of a consumer, and in the view of the provider; that nothing is lost; and that a change of the
// rules reaches all of them.
func TestRulesConvertObjects(t *testing.T) {
	t.Parallel()
	p, other, c := peopleExporter(t, " "), peopleExporter(t, "+"), newTenant(t)
	plain, d, e := peopleExporter(t, ""), newTenant(t), newTenant(t)
	p.provides("pat")
	for of, from := range map[*tenant]*tenant{c: p, d: other, e: plain} {
		of.create(apiBindings, bindingTo("people", from.name, "widgets"))
		must(of.people(peopleV2).Create(t.Context(), newPerson("v2", `{first: Ada, last: King, color: red}`), metav1.CreateOptions{}))(t)
	}
	for of, want := range map[*tenant]string{c: "Ada King||", d: "Ada+King||", e: "||"} {
		if got := nameOf(must(of.people(peopleV1).Get(t.Context(), "ada", metav1.GetOptions{}))(t)); got != want {
			t.Errorf("in v1: %q, want %q", got, want)
		}
	}
	list := must(c.people(peopleV1).List(t.Context(), metav1.ListOptions{}))(t)
	if len(list.Items) != 1 || nameOf(&list.Items[0]) != "Ada King||" {
		t.Fatalf("list in v1: %v", list.Items)
	}
	pat := must(dynamic.NewForConfig(p.view("pat").config("*")))(t).Resource(peopleV1)
	seen := must(pat.List(t.Context(), metav1.ListOptions{}))(t)
	if len(seen.Items) != 1 || nameOf(&seen.Items[0]) != "Ada King||" {
		t.Errorf("in the view: %v", seen.Items)
	}
	w := must(c.people(peopleV1).Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}))(t)
	defer w.Stop()
	v := must(pat.Watch(t.Context(), metav1.ListOptions{ResourceVersion: seen.GetResourceVersion()}))(t)
	defer v.Stop()

	// A client of v1 changes what it knows; the color stays.
	must(c.people(peopleV1).Patch(t.Context(), "ada", types.MergePatchType, []byte(`{"spec":{"name":"Ada Lovelace"}}`), metav1.PatchOptions{}))(t)
	stored := must(c.people(peopleV2).Get(t.Context(), "ada", metav1.GetOptions{}))(t)
	if nameOf(stored) != "Ada|Lovelace|red" || stored.GetAnnotations()["preserve.conversion.apis.kcp.io/v2"] != "" {
		t.Errorf("after a change in v1: %v", stored.Object)
	}
	for _, of := range []watch.Interface{w, v} {
		if got := next(t, of); nameOf(got.Object.(*unstructured.Unstructured)) != "Ada Lovelace||" {
			t.Errorf("the watch in v1 has %v", got.Object)
		}
	}

	// The watches end with the old rules, and clients continue with the new ones.
	old := must(p.any.Resource(apiConversions).Get(t.Context(), "v1.people.example.com", metav1.GetOptions{}))(t)
	changed := peopleConversion(", ")
	changed.SetResourceVersion(old.GetResourceVersion())
	must(p.any.Resource(apiConversions).Update(t.Context(), changed, metav1.UpdateOptions{}))(t)
	for _, of := range []watch.Interface{w, v} {
		for range of.ResultChan() { // until it ends
		}
	}
	if got := nameOf(must(c.people(peopleV1).Get(t.Context(), "ada", metav1.GetOptions{}))(t)); got != "Ada, Lovelace||" {
		t.Errorf("after a change of the rules: %q", got)
	}
	if got := nameOf(must(d.people(peopleV1).Get(t.Context(), "ada", metav1.GetOptions{}))(t)); got != "Ada+King||" {
		t.Errorf("the consumer of another provider has %q", got)
	}
	last := must(c.people(peopleV1).Watch(t.Context(), metav1.ListOptions{ResourceVersion: "0"}))(t)
	defer last.Stop()
	if err := p.any.Resource(apiConversions).Delete(t.Context(), "v1.people.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for range last.ResultChan() { // until it ends
	}
	if got := nameOf(must(c.people(peopleV1).Get(t.Context(), "ada", metav1.GetOptions{}))(t)); got != "||" {
		t.Errorf("without an APIConversion: %q", got)
	}
}

// TestHostileConversions shows that an object is refused if others could not read it in all
// versions, that rules are checked when they are written, and what a forged annotation changes.
func TestHostileConversions(t *testing.T) {
	t.Parallel()
	p, c := peopleExporter(t, " "), newTenant(t)
	c.create(apiBindings, bindingTo("people", p.name, "widgets"))
	if _, err := c.people(peopleV1).Create(t.Context(), newPerson("v1", `{name: Ada}`), metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "cannot be converted to v2") {
		t.Errorf("an object without a last name: %v", err)
	}
	if _, err := c.people(peopleV2).Create(t.Context(), newPerson("v2", `{first: Ada}`), metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "cannot be converted to v1") {
		t.Errorf("an object that could not be listed in v1: %v", err)
	}
	forged := newPerson("v1", `{name: Ada King}`)
	forged.SetAnnotations(map[string]string{"preserve.conversion.apis.kcp.io/v2": `{"spec.color":{"a":"b"},"metadata.name":"x","spec.last":"Forged"}`})
	must(c.people(peopleV1).Create(t.Context(), forged, metav1.CreateOptions{}))(t)
	if got := must(c.people(peopleV2).Get(t.Context(), "ada", metav1.GetOptions{}))(t); nameOf(got) != "Ada|King|" {
		t.Errorf("with a forged annotation: %v", got.Object)
	}

	refused := func(why string, o *unstructured.Unstructured) {
		t.Helper()
		if _, err := p.any.Resource(apiConversions).Create(t.Context(), o, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("created: %v, want %q", err, why)
		}
	}
	nowhere := peopleConversion(" ")
	nowhere.SetName("v2.people.example.com")
	refused("create it first", nowhere)
	hooked := peopleSchema()
	hooked.SetName("hooked.people.example.com")
	_ = unstructured.SetNestedMap(hooked.Object, map[string]any{"strategy": "Webhook", "webhook": map[string]any{
		"clientConfig": map[string]any{"url": "https://hook.example.com"}, "conversionReviewVersions": []any{"v1"}}}, "spec", "conversion")
	p.create(apiSchemas, hooked)
	nowhere.SetName("hooked.people.example.com")
	refused("has a conversion webhook", nowhere)
	again := peopleSchema()
	again.SetName("v2.people.example.com")
	p.create(apiSchemas, again)
	broken := peopleConversion("' + '")
	broken.SetName("v2.people.example.com")
	_ = unstructured.SetNestedSlice(broken.Object, []any{map[string]any{"from": "v1", "to": "v2", "rules": []any{}}}, "spec", "conversions")
	refused("add a conversion from v2 to v1", broken)
}

// TestAppliesInSeveralVersions shows server-side apply of an object whose fields have owners in another version: neither
// preserved fields nor those that an expression reads make it fail.
func TestAppliesInSeveralVersions(t *testing.T) {
	t.Parallel()
	p, c := peopleExporter(t, " "), newTenant(t)
	c.create(apiBindings, bindingTo("people", p.name, "widgets"))
	must(c.people(peopleV1).Create(t.Context(), newPerson("v1", `{name: Ada King}`), metav1.CreateOptions{FieldManager: "creator"}))(t)
	for _, apply := range []struct {
		version, spec, want string
		at                  schema.GroupVersionResource
	}{
		{"v2", `{first: Eve}`, "Eve|King|", peopleV2},
		{"v2", `{first: Eve, last: Byron, color: red}`, "Eve|Byron|red", peopleV2},
		{"v1", `{name: Ada Byron}`, "Ada Byron||", peopleV1},
		{"v2", `{first: Ada, last: Lovelace, color: blue}`, "Ada|Lovelace|blue", peopleV2},
	} {
		o, err := c.people(apply.at).Apply(t.Context(), "ada", newPerson(apply.version, apply.spec), metav1.ApplyOptions{FieldManager: "of-" + apply.version, Force: true})
		if err != nil {
			t.Fatalf("%s: %v", apply.spec, err)
		}
		if got := nameOf(o); got != apply.want {
			t.Errorf("%s: %q, want %q", apply.spec, got, apply.want)
		}
	}
}
