package server_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

var apiRollouts = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha1", Resource: "apiexportrollouts"}

// newRollout returns a rollout of schemas of widgets, with the rings in YAML.
func newRollout(name, rings string, prefixes ...string) *unstructured.Unstructured {
	var schemas []string
	for _, p := range prefixes {
		schemas = append(schemas, p+".widgets.example.com")
	}
	return decoded(`{apiVersion: apis.kcp.io/v1alpha1, kind: APIExportRollout, metadata: {name: %s}, spec: {export: widgets, schemas: [%s], rings: %s}}`,
		name, strings.Join(schemas, ", "), rings)
}

// hasSchema waits until a consumer has a schema of widgets.
func (c *tenant) hasSchema(prefix string) {
	c.t.Helper()
	c.await(apiBindings, "", "widgets", func(o *unstructured.Unstructured) bool {
		all, _, _ := unstructured.NestedSlice(o.Object, "status", "boundResources")
		return len(all) == 1 && text(&unstructured.Unstructured{Object: all[0].(map[string]any)}, "schema", "name") == prefix+".widgets.example.com"
	})
}

// rollout waits until a rollout has a phase and a number of rings.
func (c *tenant) rollout(name, phase string, rings int64) *unstructured.Unstructured {
	c.t.Helper()
	var last *unstructured.Unstructured
	c.await(apiRollouts, "", name, func(o *unstructured.Unstructured) bool {
		done, _, _ := unstructured.NestedInt64(o.Object, "status", "doneRings")
		last = o
		return text(o, "status", "phase") == phase && done == rings
	})
	return last
}

func (c *tenant) patch(r schema.GroupVersionResource, name, patch string) {
	c.t.Helper()
	must(c.any.Resource(r).Patch(c.t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(c.t)
}

func exportedSchema(p *tenant) string {
	p.t.Helper()
	o := must(p.any.Resource(apiExports).Get(p.t.Context(), "widgets", metav1.GetOptions{}))(p.t)
	all, _, _ := unstructured.NestedSlice(o.Object, "spec", "resources")
	return all[0].(map[string]any)["schema"].(string)
}

// TestARolloutInRings shows that consumers get a schema ring by ring, that a rollout stops before a
// ring whose objects break, goes on with another schema, and ends in the export. The view has the
// fields of all consumers meanwhile.
func TestARolloutInRings(t *testing.T) {
	t.Parallel()
	p, canary, rest := exporter(t), newTenant(t), newTenant(t)
	p.provides("pat")
	for _, c := range []*tenant{canary, rest} {
		c.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
		c.create(sharedWidgets, newWidget("w"))
	}
	rest.create(sharedWidgets, decoded(`{apiVersion: example.com/v1, kind: Widget, metadata: {name: red}, spec: {color: red}}`))
	p.create(apiSchemas, widgetSchema("v2", "shape"))
	w := must(canary.any.Resource(sharedWidgets).Namespace("default").Watch(t.Context(), metav1.ListOptions{}))(t)
	defer w.Stop()
	p.create(apiRollouts, newRollout("new", fmt.Sprintf(`[{name: canary, clusters: [%s]}]`, canary.name), "v2"))

	// The first ring has it, the second would lose a field.
	stopped := p.rollout("new", "Stopped", 1)
	if got := conditionOf(stopped, "Progressing"); got != "False SchemasBreakObjects" {
		t.Errorf("the rollout is %s", got)
	}
	causes, _, _ := unstructured.NestedStringSlice(stopped.Object, "status", "causes")
	if want := []string{"widgets.example.com spec.color: FieldLost, objects: 1"}; !slices.Equal(causes, want) {
		t.Errorf("causes: %q", causes)
	}
	canary.hasSchema("v2")
	rest.hasSchema("v1")
	for open := true; open; { // the watch of the consumer ends with its schema
		_, open = <-w.ResultChan()
	}
	canary.create(sharedWidgets, decoded(`{apiVersion: example.com/v1, kind: Widget, metadata: {name: round}, spec: {shape: round, color: blue}}`))
	rest.create(sharedWidgets, decoded(`{apiVersion: example.com/v1, kind: Widget, metadata: {name: green}, spec: {shape: oval, color: green}}`))
	list := must(p.view("pat").widgets("*").List(t.Context(), metav1.ListOptions{}))(t)
	var seen []string
	for i := range list.Items {
		seen = append(seen, list.Items[i].GetName()+" "+strings.ReplaceAll(text(&list.Items[i], "spec", "shape")+text(&list.Items[i], "spec", "color"), "<nil>", ""))
	}
	slices.Sort(seen)
	if want := []string{"green green", "red red", "round round", "w ", "w "}; !slices.Equal(seen, want) {
		t.Errorf("in the view: %q", seen)
	}
	if exportedSchema(p) != "v1.widgets.example.com" {
		t.Error("the export has the schema already")
	}

	// A second rollout waits. A new consumer gets what its ring has.
	p.create(apiRollouts, newRollout("another", "[]", "v2"))
	if got := conditionOf(p.rollout("another", "Waiting", 0), "Progressing"); got != "False OtherRollout" {
		t.Errorf("the second rollout is %s", got)
	}
	late := newTenant(t)
	late.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	late.hasSchema("v1")

	// With a schema that has both fields, the rings begin again.
	p.create(apiSchemas, bothSchema("v3"))
	p.patch(apiRollouts, "new", `{"spec":{"schemas":["v3.widgets.example.com"]}}`)
	p.rollout("new", "Completed", 2)
	if got := exportedSchema(p); got != "v3.widgets.example.com" {
		t.Errorf("the export has %s", got)
	}
	for _, c := range []*tenant{canary, rest, late} {
		c.hasSchema("v3")
	}
	if o := must(rest.any.Resource(sharedWidgets).Namespace("default").Get(t.Context(), "red", metav1.GetOptions{}))(t); text(o, "spec", "color") != "red" {
		t.Errorf("after the rollout: %v", o.Object)
	}
}

// TestARolloutIsUndone shows that a rollout that is deleted stays until the objects of its
// consumers are valid with the schemas of the export, and that consumers then return to these.
func TestARolloutIsUndone(t *testing.T) {
	t.Parallel()
	p, canary, rest := exporter(t), newTenant(t), newTenant(t)
	for _, c := range []*tenant{canary, rest} {
		c.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	}
	p.create(apiSchemas, widgetSchema("v2", "shape"))
	p.create(apiRollouts, newRollout("new", fmt.Sprintf(`[{name: canary, clusters: [%s], pause: 24h}]`, canary.name), "v2"))
	p.rollout("new", "Paused", 1)
	canary.hasSchema("v2")
	rest.hasSchema("v1")
	canary.create(sharedWidgets, decoded(`{apiVersion: example.com/v1, kind: Widget, metadata: {name: round}, spec: {shape: round}}`))
	if err := p.any.Resource(apiRollouts).Delete(t.Context(), "new", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.rollout("new", "Stopped", 1)
	canary.hasSchema("v2")
	p.patch(apiRollouts, "new", `{"spec":{"maxBroken":1}}`)
	p.await(apiRollouts, "", "new", gone)
	canary.hasSchema("v1")
}

// TestHostileRollouts shows which rollouts are refused or wait, and that only the server writes
// their status.
func TestHostileRollouts(t *testing.T) {
	t.Parallel()
	p, other := exporter(t), exporter(t)
	other.create(apiSchemas, widgetSchema("elsewhere", "color"))
	p.create(apiSchemas, peopleSchema())
	create := func(o *unstructured.Unstructured) error {
		_, err := p.any.Resource(apiRollouts).Create(t.Context(), o, metav1.CreateOptions{})
		return err
	}
	for why, o := range map[string]*unstructured.Unstructured{
		"is the second of":      newRollout("a", "[]", "v1", "v2"),
		"must be <prefix>":      decoded(`{apiVersion: apis.kcp.io/v1alpha1, kind: APIExportRollout, metadata: {name: a}, spec: {export: widgets, schemas: [widgets]}}`),
		"which another ring":    newRollout("a", `[{name: b, percent: 1}, {name: b, percent: 2}]`, "v1"),
		"less than that":        newRollout("a", `[{name: b, percent: 2}, {name: c, percent: 1}]`, "v1"),
		"must not be negativ":   newRollout("a", `[{name: b, percent: 2, pause: -1s}]`, "v1"),
		"it is malformed":       newRollout("a", `[{name: b, percent: 2, pause: soon}]`, "v1"),
		"a selector or several": newRollout("a", `[{name: b}]`, "v1"),
	} {
		if err := create(o); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("created: %v, want %q", err, why)
		}
	}
	// The condition of a rollout names the schema that it lacks. A schema of another cluster does not exist for it.
	for name, o := range map[string]*unstructured.Unstructured{
		"elsewhere": newRollout("elsewhere", "[]", "elsewhere"),
		"people":    decoded(`{apiVersion: apis.kcp.io/v1alpha1, kind: APIExportRollout, metadata: {name: people}, spec: {export: widgets, schemas: [v1.people.example.com]}}`),
		"nothing":   decoded(`{apiVersion: apis.kcp.io/v1alpha1, kind: APIExportRollout, metadata: {name: nothing}, spec: {export: nothing, schemas: [v1.widgets.example.com]}}`),
	} {
		if err := create(o); err != nil {
			t.Fatal(err)
		}
		if got := conditionOf(p.rollout(name, "Waiting", 0), "Progressing"); !strings.HasPrefix(got, "False ") {
			t.Errorf("%s is %s", name, got)
		}
	}
	forged := must(p.any.Resource(apiRollouts).Get(t.Context(), "elsewhere", metav1.GetOptions{}))(t)
	_ = unstructured.SetNestedField(forged.Object, "Completed", "status", "phase")
	builtIn := decoded(`{apiVersion: apis.kcp.io/v1alpha1, kind: APIExportRollout, metadata: {name: a}, spec: {export: tenancy.kcp.io, schemas: [v1.widgets.example.com]}}`)
	if _, err := at(t, p.server, cluster.Root, server.System()).any.Resource(apiRollouts).Create(t.Context(), builtIn, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a rollout of a built-in export: %v", err)
	}
	rob := p.person("rob")
	p.allows("roll", "User", rob.info.Name, []string{"*"}, "apiexportrollouts")
	if _, err := must(dynamic.NewForConfig(p.server.InProcess(string(p.name), rob.info)))(t).Resource(apiRollouts).Create(t.Context(), newRollout("rob", "[]", "v1"), metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "needs the verb update on apiexports") {
		t.Errorf("a user who may not change the export: %v", err)
	}
	eve := p.person("eve")
	p.bind("eve", "cluster-admin", eve.subject())
	config := p.server.InProcess(string(p.name), eve.info)
	if _, err := must(dynamic.NewForConfig(config))(t).Resource(apiRollouts).UpdateStatus(t.Context(), forged, metav1.UpdateOptions{}); err == nil || !strings.Contains(err.Error(), "kept by the system") {
		t.Errorf("a forged status: %v", err)
	}
}
