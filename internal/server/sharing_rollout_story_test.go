package server_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

// bothSchema is a schema of widgets with the fields of v1 and v2.
func bothSchema(prefix string) *unstructured.Unstructured {
	both := widgetSchema(prefix, "shape")
	versions, _, _ := unstructured.NestedSlice(both.Object, "spec", "versions")
	_ = unstructured.SetNestedMap(versions[0].(map[string]any), map[string]any{"type": "string"}, "schema", "properties", "spec", "properties", "color")
	_ = unstructured.SetNestedSlice(both.Object, versions, "spec", "versions")
	return both
}

// label sets a label of the binding to widgets, null removes it.
func (c *tenant) label(value string) {
	c.t.Helper()
	c.patch(apiBindings, "widgets", `{"metadata":{"labels":{"ring":`+value+`}}}`)
}

// rolloutStory has all steps of rollouts.
var rolloutStory = []storyStep{
	{"export", func(s *story) {
		s.provider.again(apiSchemas, widgetSchema("v1", "color"))
		s.provider.again(apiSchemas, widgetSchema("v2", "shape"))
		s.provider.again(apiSchemas, bothSchema("v3"))
		s.provider.again(apiExports, widgetExport("widgets", "v1"))
		s.provider.until(apiExports, "widgets", "IdentityValid True")
		for _, c := range []*tenant{s.consumer, s.other} {
			c.again(apiBindings, bindingTo("widgets", storyProvider, "widgets"))
			c.until(apiBindings, "widgets", "Ready True")
			c.again(sharedWidgets, newWidget("w"))
		}
		s.other.again(sharedWidgets, decoded(`{apiVersion: example.com/v1, kind: Widget, metadata: {name: red}, spec: {color: red}}`))
		s.provider.until(apiSlices, "widgets", "", viewPath)
	}},
	{"stop", func(s *story) {
		s.provider.again(apiRollouts, newRollout("new", `[{name: canary, clusters: [story-consumer]}]`, "v2"))
		s.provider.rollout("new", "Stopped", 1)
		s.consumer.hasSchema("v2")
		s.other.hasSchema("v1")
	}},
	{"other schemas", func(s *story) {
		s.provider.patch(apiRollouts, "new", `{"spec":{"schemas":["v3.widgets.example.com"]}}`)
		s.provider.rollout("new", "Completed", 2)
		s.consumer.hasSchema("v3")
		s.other.hasSchema("v3")
		if got := exportedSchema(s.provider); got != "v3.widgets.example.com" {
			s.provider.t.Errorf("the export has %s", got)
		}
	}},
	{"deletion of a completed one", func(s *story) {
		s.provider.without(apiRollouts, "new")
		s.provider.await(apiRollouts, "", "new", gone)
	}},
	{"labels", func(s *story) {
		s.consumer.label(`"canary"`)
		s.provider.again(apiRollouts, newRollout("back", `[{name: canary, selector: {matchLabels: {ring: canary}}, pause: 24h}]`, "v2"))
		s.provider.rollout("back", "Paused", 1)
		s.consumer.hasSchema("v2")
		s.other.hasSchema("v3")
	}},
	{"other labels", func(s *story) {
		s.consumer.label("null")
		s.other.label(`"canary"`)
		s.consumer.hasSchema("v2")
		s.other.hasSchema("v3")
	}},
	{"return", func(s *story) {
		s.provider.without(apiRollouts, "back")
		s.provider.await(apiRollouts, "", "back", gone)
		s.consumer.hasSchema("v3")
	}},
	{"deletion of the export", func(s *story) {
		if _, err := s.provider.any.Resource(apiExports).Get(s.provider.t.Context(), "widgets", metav1.GetOptions{}); err == nil {
			s.provider.again(apiRollouts, newRollout("last", `[{name: canary, clusters: [story-consumer], pause: 24h}]`, "v2"))
			s.provider.rollout("last", "Paused", 1)
			s.consumer.hasSchema("v2")
		}
		s.provider.without(apiExports, "widgets")
		s.consumer.until(apiBindings, "widgets", "APIExportValid False APIExportNotFound")
		s.provider.without(apiRollouts, "last")
		s.provider.await(apiRollouts, "", "last", gone)
		s.consumer.hasSchema("v2")
		s.other.hasSchema("v3")
	}},
}

// TestARingByLabels shows a ring of the consumers whose bindings have a label when the ring is checked:
// it keeps them, and gets no others later.
func TestARingByLabels(t *testing.T) {
	t.Parallel()
	p, canary, rest, late := exporter(t), newTenant(t), newTenant(t), newTenant(t)
	for _, c := range []*tenant{canary, rest} {
		c.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	}
	canary.label(`"canary"`)
	stranger, elsewhere := newTenant(t), exporter(t)
	stranger.create(apiBindings, bindingTo("widgets", elsewhere.name, "widgets"))
	stranger.label(`"canary"`)
	p.create(apiSchemas, widgetSchema("v2", "shape"))
	p.create(apiRollouts, newRollout("new", `[{name: canary, selector: {matchExpressions: [{key: ring, operator: In, values: [canary]}]}, pause: 24h}]`, "v2"))
	o := p.rollout("new", "Paused", 1)
	stages, _, _ := unstructured.NestedSlice(o.Object, "status", "stages")
	if got := fmt.Sprint(stages[0].(map[string]any)["selected"]); got != fmt.Sprintf("[%s]", canary.name) {
		t.Errorf("selected are %s", got)
	}
	canary.hasSchema("v2")
	rest.hasSchema("v1")

	// Labels that change later have no effect.
	canary.label("null")
	rest.label(`"canary"`)
	bound := bindingTo("widgets", p.name, "widgets")
	bound.SetLabels(map[string]string{"ring": "canary"})
	late.create(apiBindings, bound)
	p.patch(apiExports, "widgets", `{"metadata":{"annotations":{"extra.apis.kcp.io/x":"y"}}}`) // all bindings are looked at
	late.hasSchema("v1")
	canary.hasSchema("v2")
	rest.hasSchema("v1")
	p.patch(apiRollouts, "new", `{"spec":{"rings":[]}}`)
	p.rollout("new", "Completed", 2)
	for _, c := range []*tenant{canary, rest, late} {
		c.hasSchema("v2")
	}
	for why, selector := range map[string]string{
		"is empty and would select all": `{}`, "is not a valid label selector": `{matchExpressions: [{key: a, operator: near}]}`,
	} {
		_, err := p.any.Resource(apiRollouts).Create(t.Context(), newRollout("bad", `[{name: a, selector: `+selector+`}]`, "v2"), metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), why) {
			t.Errorf("the selector %s: %v", selector, err)
		}
	}
}

// TestARolloutEndsWithItsWorkspace shows that consumers keep the schemas of their rings when the
// workspace of the provider is deleted: they do not return to those of the export before that is gone.
func TestARolloutEndsWithItsWorkspace(t *testing.T) {
	t.Parallel()
	home, canary, rest := newTenant(t), newTenant(t), newTenant(t)
	p := home.workspace("provider")
	p.create(apiSchemas, widgetSchema("v1", "color"))
	p.create(apiExports, widgetExport("widgets", "v1"))
	for _, c := range []*tenant{canary, rest} {
		c.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	}
	p.create(apiSchemas, widgetSchema("v2", "shape"))
	p.create(apiRollouts, newRollout("new", fmt.Sprintf(`[{name: canary, clusters: [%s], pause: 24h}]`, canary.name), "v2"))
	p.rollout("new", "Paused", 1)
	canary.hasSchema("v2")
	canary.create(sharedWidgets, decoded(`{apiVersion: example.com/v1, kind: Widget, metadata: {name: round}, spec: {shape: round}}`))

	// The export and its schemas outlast the deletion of the rollout.
	p.forbids("stay", "false", func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec, _ *admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec) {
		rules := matching("apis.kcp.io", "apiexports", admissionregistrationv1.Delete)
		rules.Resources = append(rules.Resources, "apiresourceschemas")
		s.MatchConstraints = &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: rules}}}
	})
	w := must(canary.any.Resource(apiBindings).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=widgets"}))(t)
	defer w.Stop()
	home.deleteWorkspace("provider")
	home.says(workspaces, "provider", "webhooks and policies are asked again")
	p.await(apiRollouts, "", "new", func(o *unstructured.Unstructured) bool { return o == nil || o.GetDeletionTimestamp() != nil })
	if err := p.kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(t.Context(), "stay", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	home.await(workspaces, "", "provider", gone)
	for ended := false; !ended; {
		e := next(t, w)
		o := e.Object.(*unstructured.Unstructured)
		if !strings.Contains(fmt.Sprint(o.Object["status"]), "v2.widgets.example.com") {
			t.Fatalf("the consumer has another schema: %v", o.Object["status"])
		}
		ended = conditionOf(o, "APIExportValid") == "False APIExportNotFound"
	}
	rest.hasSchema("v1")
	if o := must(canary.any.Resource(sharedWidgets).Namespace("default").Get(t.Context(), "round", metav1.GetOptions{}))(t); text(o, "spec", "shape") != "round" {
		t.Errorf("the object has lost a field: %v", o.Object)
	}
}

// nextPeople is a schema of people after that of [peopleSchema]: a person has a color, and there is a
// further version.
func nextPeople() *unstructured.Unstructured {
	return decoded(`
apiVersion: apis.kcp.io/v1alpha1
kind: APIResourceSchema
metadata: {name: next.people.example.com}
spec:
  group: example.com
  names: {plural: people, singular: person, kind: Person, listKind: PersonList}
  conversion: {strategy: None}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: false, schema: {type: object, properties: {spec: {type: object, properties: {name: {type: string}}}}}}
  - {name: v2, served: true, storage: true, schema: {type: object, properties: {spec: {type: object, properties: {first: {type: string}, last: {type: string}, color: {type: string, default: blue}}}}}}
  - {name: v3, served: true, storage: false, schema: {type: object, properties: {spec: {type: object, properties: {first: {type: string}, last: {type: string}, color: {type: string, default: green}}}}}}
`)
}

// TestEachObjectIsReadWithItsSchema shows that during a rollout the view of the provider, and lists by
// identity, read the objects of each consumer with its own schema, APIConversion and defaults, and in
// versions that it lacks as they are stored.
func TestEachObjectIsReadWithItsSchema(t *testing.T) {
	t.Parallel()
	p, canary, rest := peopleExporter(t, " "), newTenant(t), newTenant(t)
	p.provides("pat")
	for _, c := range []*tenant{canary, rest} {
		c.create(apiBindings, bindingTo("people", p.name, "widgets"))
		must(c.people(peopleV2).Create(t.Context(), newPerson("v2", `{first: Ada, last: King}`), metav1.CreateOptions{}))(t)
	}
	p.create(apiSchemas, nextPeople())
	next := peopleConversion("+")
	next.SetName("next.people.example.com")
	all, _, _ := unstructured.NestedSlice(next.Object, "spec", "conversions")
	for _, way := range [][2]string{{"v2", "v3"}, {"v3", "v2"}} { // v3 has other defaults
		all = append(all, map[string]any{"from": way[0], "to": way[1], "rules": []any{}})
	}
	_ = unstructured.SetNestedSlice(next.Object, all, "spec", "conversions")
	p.create(apiConversions, next)
	p.create(apiRollouts, decoded(`{apiVersion: apis.kcp.io/v1alpha1, kind: APIExportRollout, metadata: {name: new}, spec: {export: widgets, schemas: [next.people.example.com],
		rings: [{name: canary, clusters: [%s], pause: 24h}]}}`, canary.name))
	p.rollout("new", "Paused", 1)
	canary.await(apiBindings, "", "people", func(o *unstructured.Unstructured) bool {
		return strings.Contains(fmt.Sprint(o.Object["status"]), "next.people.example.com")
	})
	identity := text(must(p.any.Resource(apiExports).Get(t.Context(), "widgets", metav1.GetOptions{}))(t), "status", "identityHash")
	views := map[string]dynamic.Interface{
		"":             must(dynamic.NewForConfig(p.view("pat").config("*")))(t),
		":" + identity: at(t, p.server, cluster.All, server.System()).any,
	}
	for suffix, view := range views {
		for version, want := range map[string][]string{
			"v1": {"Ada+King||", "Ada King||"}, "v2": {"Ada|King|blue", "Ada|King|"}, "v3": {"Ada|King|blue", "Ada|King|"},
		} {
			r := peopleV1
			r.Version, r.Resource = version, r.Resource+suffix
			list := must(view.Resource(r).List(t.Context(), metav1.ListOptions{}))(t)
			got := map[cluster.Name]string{}
			for i := range list.Items {
				got[cluster.Of(&list.Items[i])] = nameOf(&list.Items[i])
			}
			if len(got) != 2 || got[canary.name] != want[0] || got[rest.name] != want[1] {
				t.Errorf("%q: in %s are %v, not %v", suffix, version, got, want)
			}
		}
	}
	for of, want := range map[*tenant]string{canary: "Ada+King||", rest: "Ada King||"} {
		if got := nameOf(must(of.people(peopleV1).Get(t.Context(), "ada", metav1.GetOptions{}))(t)); got != want {
			t.Errorf("a consumer reads %q, not %q", got, want)
		}
	}
	list := must(views[""].Resource(peopleV1).List(t.Context(), metav1.ListOptions{}))(t)
	w := must(views[""].Resource(peopleV1).Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}))(t)
	defer w.Stop()
	var seen []string
	for _, c := range []*tenant{canary, rest} {
		must(c.people(peopleV2).Create(t.Context(), decoded(`{apiVersion: example.com/v2, kind: Person, metadata: {name: bob}, spec: {first: Bob, last: Ross}}`), metav1.CreateOptions{}))(t)
		seen = append(seen, nameOf(nextOf(t, w)))
	}
	if want := []string{"Bob+Ross||", "Bob Ross||"}; !slices.Equal(seen, want) {
		t.Errorf("the watch of the view has %q", seen)
	}
}

// nextOf returns the object of the next event of a watch.
func nextOf(t *testing.T, w watch.Interface) *unstructured.Unstructured {
	t.Helper()
	o, ok := next(t, w).Object.(*unstructured.Unstructured)
	if !ok {
		t.Fatal("the watch has failed")
	}
	return o
}
