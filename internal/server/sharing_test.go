package server_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

var (
	apiSchemas    = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha1", Resource: "apiresourceschemas"}
	apiSlices     = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha1", Resource: "apiexportendpointslices"}
	apiExports    = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apiexports"}
	apiBindings   = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apibindings"}
	sharedWidgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
)

// decoded decodes YAML.
func decoded(text string, args ...any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(fmt.Appendf(nil, text, args...), &o.Object); err != nil {
		panic(err)
	}
	data, _ := json.Marshal(o.Object) // numbers as the API has them
	_ = o.UnmarshalJSON(data)
	return o
}

// create creates a cluster-scoped object, or one in the namespace default.
func (c *tenant) create(r schema.GroupVersionResource, o *unstructured.Unstructured) *unstructured.Unstructured {
	c.t.Helper()
	if r == sharedWidgets {
		return must(c.any.Resource(r).Namespace("default").Create(c.t.Context(), o, metav1.CreateOptions{}))(c.t)
	}
	return must(c.any.Resource(r).Create(c.t.Context(), o, metav1.CreateOptions{}))(c.t)
}

// widgetSchema is an APIResourceSchema of widgets, whose spec has one more field.
func widgetSchema(prefix, field string) *unstructured.Unstructured {
	return decoded(`
apiVersion: apis.kcp.io/v1alpha1
kind: APIResourceSchema
metadata: {name: %s.widgets.example.com}
spec:
  group: example.com
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList, shortNames: [wi]}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      type: object
      properties:
        spec: {type: object, properties: {size: {type: integer, default: 1}, %s: {type: string}}}
        status: {type: object, properties: {phase: {type: string}}}
`, prefix, field)
}

func widgetExport(name, prefix string) *unstructured.Unstructured {
	return decoded(`
apiVersion: apis.kcp.io/v1alpha2
kind: APIExport
metadata: {name: %s}
spec:
  resources:
  - {name: widgets, group: example.com, schema: %s.widgets.example.com}
`, name, prefix)
}

func bindingTo(name string, provider cluster.Name, export string) *unstructured.Unstructured {
	return decoded(`
apiVersion: apis.kcp.io/v1alpha2
kind: APIBinding
metadata: {name: %s}
spec: {reference: {export: {path: "%s", name: %s}}}
`, name, provider, export)
}

func newWidget(name string) *unstructured.Unstructured {
	return decoded(`{apiVersion: example.com/v1, kind: Widget, metadata: {name: %s}, spec: {}}`, name)
}

// exporter returns a cluster that exports widgets.
func exporter(t *testing.T) *tenant {
	p := newTenant(t)
	p.create(apiSchemas, widgetSchema("v1", "color"))
	p.create(apiExports, widgetExport("widgets", "v1"))
	return p
}

// conditionOf returns a condition of an object as "status reason".
func conditionOf(o *unstructured.Unstructured, of string) string {
	all, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range all {
		if c := c.(map[string]any); c["type"] == of {
			return strings.TrimSpace(fmt.Sprint(c["status"], " ", strings.TrimPrefix(fmt.Sprint(c["reason"]), "<nil>")))
		}
	}
	return ""
}

// TestABindingIsBoundWhenItIsCreated shows that the resource of an export is served in the
// consumer's cluster when the creation of the binding returns, like one of its own.
func TestABindingIsBoundWhenItIsCreated(t *testing.T) {
	t.Parallel()
	provider, consumer, other := exporter(t), newTenant(t), newTenant(t)
	b := consumer.create(apiBindings, bindingTo("widgets", provider.name, "widgets"))
	if got := text(b, "status", "phase"); got != "Bound" || conditionOf(b, "Ready") != "True" {
		t.Fatalf("the new binding is %q: %v", got, b.Object["status"])
	}
	made := consumer.create(sharedWidgets, newWidget("w"))
	if size, _, _ := unstructured.NestedInt64(made.Object, "spec", "size"); size != 1 {
		t.Errorf("the default of the schema is not applied: %v", made.Object)
	}
	resources := must(consumer.kube.Discovery().ServerResourcesForGroupVersion("example.com/v1"))(t)
	if !slices.ContainsFunc(resources.APIResources, func(r metav1.APIResource) bool { return r.Name == "widgets" && slices.Contains(r.ShortNames, "wi") }) {
		t.Errorf("discovery has no widgets: %v", resources.APIResources)
	}
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	if list := must(consumer.any.Resource(crds).List(t.Context(), metav1.ListOptions{}))(t); len(list.Items) > 0 {
		t.Errorf("the consumer has %d definitions", len(list.Items))
	}
	if _, err := other.any.Resource(sharedWidgets).Namespace("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("without a binding: %v", err)
	}
	if _, err := provider.any.Resource(sharedWidgets).Namespace("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the provider itself does not bind its export: %v", err)
	}
}

// TestAnExportHasAnIdentity shows the secret of a new export, and that exports with one secret
// have one identity.
func TestAnExportHasAnIdentity(t *testing.T) {
	t.Parallel()
	p := exporter(t)
	first := must(p.any.Resource(apiExports).Get(t.Context(), "widgets", metav1.GetOptions{}))(t)
	secret := must(p.kube.CoreV1().Secrets("kcp-system").Get(t.Context(), "widgets", metav1.GetOptions{}))(t)
	if len(secret.Data["key"]) == 0 || text(first, "spec", "identity", "secretRef", "name") != "widgets" || len(text(first, "status", "identityHash")) != 64 {
		t.Fatalf("export %v with secret %v", first.Object, secret.Data)
	}
	second := widgetExport("again", "v1")
	_ = unstructured.SetNestedStringMap(second.Object, map[string]string{"namespace": "kcp-system", "name": "widgets"}, "spec", "identity", "secretRef")
	if got := p.create(apiExports, second); text(got, "status", "identityHash") != text(first, "status", "identityHash") {
		t.Errorf("with the same secret the identity is %q", text(got, "status", "identityHash"))
	}
	third := widgetExport("without", "v1")
	_ = unstructured.SetNestedStringMap(third.Object, map[string]string{"namespace": "default", "name": "later"}, "spec", "identity", "secretRef")
	if got := conditionOf(p.create(apiExports, third), "IdentityValid"); got != "False IdentityVerificationFailed" {
		t.Fatalf("without its secret: %q", got)
	}
	consumer := newTenant(t)
	if b := consumer.create(apiBindings, bindingTo("early", p.name, "without")); conditionOf(b, "APIExportValid") != "False MissingIdentityHash" {
		t.Errorf("binding to an export without identity: %v", b.Object["status"])
	}
	later := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "later"}, StringData: map[string]string{"key": "mine"}}
	must(p.kube.CoreV1().Secrets("default").Create(t.Context(), later, metav1.CreateOptions{}))(t)
	p.await(apiExports, "", "without", func(o *unstructured.Unstructured) bool { return conditionOf(o, "IdentityValid") == "True" })
	consumer.await(apiBindings, "", "early", func(o *unstructured.Unstructured) bool { return text(o, "status", "phase") == "Bound" })
}

// TestBindingsWaitForWhatIsMissing shows the conditions of bindings that cannot be bound, and
// that they are bound as soon as they can.
func TestBindingsWaitForWhatIsMissing(t *testing.T) {
	t.Parallel()
	p, consumer := newTenant(t), newTenant(t)
	b := consumer.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	if got := conditionOf(b, "APIExportValid"); got != "False APIExportNotFound" || text(b, "status", "phase") != "Binding" {
		t.Fatalf("without an export: %q, %v", got, b.Object["status"])
	}
	if got := conditionOf(b, "InitialBindingCompleted") + ", " + conditionOf(b, "Ready"); got != "False WaitingForEstablished, False WaitingForEstablished" {
		t.Errorf("without an export: %s", got)
	}
	p.create(apiExports, widgetExport("widgets", "v1"))
	consumer.await(apiBindings, "", "widgets", func(o *unstructured.Unstructured) bool {
		return conditionOf(o, "InitialBindingCompleted") == "False APIResourceSchemaInvalid" && conditionOf(o, "Ready") == "False APIResourceSchemaInvalid"
	})
	p.create(apiSchemas, widgetSchema("v1", "color"))
	consumer.await(apiBindings, "", "widgets", func(o *unstructured.Unstructured) bool { return text(o, "status", "phase") == "Bound" })
	consumer.create(sharedWidgets, newWidget("w"))
}

// TestANameHasOneOwner shows that a cluster has a resource from one binding or definition, and
// that another gets it when that is gone.
func TestANameHasOneOwner(t *testing.T) {
	t.Parallel()
	one, two, consumer := exporter(t), exporter(t), newTenant(t)
	consumer.create(apiBindings, bindingTo("one", one.name, "widgets"))
	second := consumer.create(apiBindings, bindingTo("two", two.name, "widgets"))
	if got := conditionOf(second, "InitialBindingCompleted"); got != "False NamingConflicts" || text(second, "status", "phase") != "Binding" {
		t.Fatalf("the second binding: %v", second.Object["status"])
	}
	consumer.create(sharedWidgets, newWidget("w"))
	if err := consumer.any.Resource(apiBindings).Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	consumer.await(apiBindings, "", "two", func(o *unstructured.Unstructured) bool { return text(o, "status", "phase") == "Bound" })
	if list := must(consumer.any.Resource(sharedWidgets).Namespace("default").List(t.Context(), metav1.ListOptions{}))(t); len(list.Items) != 0 {
		t.Errorf("objects of the export with another identity are visible: %v", list.Items)
	}
}

// TestADefinitionGetsTheNameOfADeletedBinding shows that a definition whose names a bound API has
// is accepted and served when the binding is gone.
func TestADefinitionGetsTheNameOfADeletedBinding(t *testing.T) {
	t.Parallel()
	p, consumer := exporter(t), newTenant(t)
	consumer.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	d := consumer.newKind(crd(t, sharedWidgets.Resource))
	if !conditionIs(d, apiextensionsv1.NamesAccepted, "False") {
		t.Fatalf("the definition has the names of the bound API: %+v", d.Status)
	}
	if err := consumer.any.Resource(apiBindings).Delete(t.Context(), "widgets", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	consumer.untilTold(d.Name, apiextensionsv1.Established, "True", "")
	must(consumer.of(d).List(t.Context(), metav1.ListOptions{}))(t)
}

// TestObjectsPassToABindingOfTheSameIdentity shows that objects survive the deletion of their
// binding, if another binding in the cluster has the same resource of the same identity.
func TestObjectsPassToABindingOfTheSameIdentity(t *testing.T) {
	t.Parallel()
	p, consumer := exporter(t), newTenant(t)
	p.create(apiSchemas, widgetSchema("v2", "shape"))
	next := widgetExport("next", "v2")
	_ = unstructured.SetNestedStringMap(next.Object, map[string]string{"namespace": "kcp-system", "name": "widgets"}, "spec", "identity", "secretRef")
	p.create(apiExports, next)
	consumer.create(apiBindings, bindingTo("old", p.name, "widgets"))
	uid := consumer.create(sharedWidgets, newWidget("w")).GetUID()
	consumer.create(apiBindings, bindingTo("new", p.name, "next"))
	if err := consumer.any.Resource(apiBindings).Delete(t.Context(), "old", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	consumer.await(apiBindings, "", "new", func(o *unstructured.Unstructured) bool { return text(o, "status", "phase") == "Bound" })
	kept := must(consumer.any.Resource(sharedWidgets).Namespace("default").Patch(t.Context(), "w", types.MergePatchType, []byte(`{"spec":{"shape":"round"}}`), metav1.PatchOptions{}))(t)
	if kept.GetUID() != uid || text(kept, "spec", "shape") != "round" {
		t.Errorf("it is %v", kept.Object)
	}
}

// TestUnbindingDeletesTheObjects shows that the deletion of a binding waits for its objects,
// and that nothing can be created meanwhile.
func TestUnbindingDeletesTheObjects(t *testing.T) {
	t.Parallel()
	p, consumer := exporter(t), newTenant(t)
	consumer.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	held := newWidget("held")
	held.SetFinalizers([]string{"example.com/hold"})
	consumer.create(sharedWidgets, held)
	consumer.create(sharedWidgets, newWidget("free"))
	if err := consumer.any.Resource(apiBindings).Delete(t.Context(), "widgets", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b := consumer.await(apiBindings, "", "widgets", func(o *unstructured.Unstructured) bool {
		return conditionOf(o, "BindingResourceDeleteSuccess") == "False SomeFinalizersRemain"
	})
	if !strings.Contains(fmt.Sprint(b.Object["status"]), "default/held") {
		t.Errorf("the status does not name the object: %v", b.Object["status"])
	}
	if _, err := consumer.any.Resource(sharedWidgets).Namespace("default").Create(t.Context(), newWidget("late"), metav1.CreateOptions{}); err == nil {
		t.Error("an object was created meanwhile")
	}
	if _, err := consumer.any.Resource(sharedWidgets).Namespace("default").Patch(t.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	consumer.await(apiBindings, "", "widgets", gone)
	consumer.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	if list := must(consumer.any.Resource(sharedWidgets).List(t.Context(), metav1.ListOptions{}))(t); len(list.Items) != 0 {
		t.Errorf("objects came back: %v", list.Items)
	}
}

// TestASchemaRollsOut shows that bindings follow their export to another schema, and that the
// objects stay.
func TestASchemaRollsOut(t *testing.T) {
	t.Parallel()
	p := exporter(t)
	consumers := []*tenant{newTenant(t), newTenant(t)}
	for _, c := range consumers {
		c.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
		c.create(sharedWidgets, newWidget("w"))
	}
	p.create(apiSchemas, widgetSchema("v2", "shape"))
	if _, err := p.any.Resource(apiExports).Patch(t.Context(), "widgets", types.JSONPatchType,
		[]byte(`[{"op":"replace","path":"/spec/resources/0/schema","value":"v2.widgets.example.com"}]`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range consumers {
		c.await(apiBindings, "", "widgets", func(o *unstructured.Unstructured) bool {
			return strings.Contains(fmt.Sprint(o.Object["status"]), "v2.widgets.example.com")
		})
		w := must(c.any.Resource(sharedWidgets).Namespace("default").Patch(t.Context(), "w", types.MergePatchType, []byte(`{"spec":{"shape":"round","color":"red"}}`), metav1.PatchOptions{}))(t)
		if fmt.Sprint(w.Object["spec"]) != "map[shape:round size:1]" {
			t.Errorf("it is not of the new schema: %v", w.Object["spec"])
		}
	}
}

// TestMalformedSharingIsRefused shows the errors of objects that are not valid.
func TestMalformedSharingIsRefused(t *testing.T) {
	t.Parallel()
	p := exporter(t)
	renamed := widgetSchema("v1", "color")
	renamed.SetName("v1.gadgets.example.com")
	unstructuredSchema := widgetSchema("v9", "color")
	versions, _, _ := unstructured.NestedSlice(unstructuredSchema.Object, "spec", "versions")
	versions[0].(map[string]any)["schema"] = map[string]any{"type": "object", "properties": map[string]any{"spec": map[string]any{}}}
	_ = unstructured.SetNestedSlice(unstructuredSchema.Object, versions, "spec", "versions")
	anyName := peopleSchema()
	_ = unstructured.SetNestedField(anyName.Object, "PathSegmentName", "spec", "nameValidation")
	foreign := widgetExport("foreign", "v1")
	_ = unstructured.SetNestedSlice(foreign.Object, []any{map[string]any{"name": "gadgets", "group": "example.com", "schema": "v1.widgets.example.com"}}, "spec", "resources")
	for name, c := range map[string]struct {
		r    schema.GroupVersionResource
		o    *unstructured.Unstructured
		want string
	}{
		"name":      {apiSchemas, renamed, "must be v1.widgets.example.com"},
		"schema":    {apiSchemas, unstructuredSchema, "must not be empty"},
		"any name":  {apiSchemas, anyName, "spec.nameValidation: Forbidden: PathSegmentName needs a schema that serves only the version in which objects are stored"},
		"resource":  {apiExports, foreign, "must end in .gadgets.example.com"},
		"reference": {apiBindings, decoded(`{apiVersion: apis.kcp.io/v1alpha2, kind: APIBinding, metadata: {name: x}, spec: {reference: {}}}`), "reference"},
	} {
		if _, err := p.any.Resource(c.r).Create(t.Context(), c.o, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, not %q", name, err, c.want)
		}
	}
	if _, err := p.any.Resource(apiSchemas).Patch(t.Context(), "v1.widgets.example.com", types.MergePatchType, []byte(`{"spec":{"scope":"Cluster"}}`), metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a schema was changed: %v", err)
	}
}

// TestOlderClientsShareAPIs shows that exports and bindings can be written and read in
// v1alpha1, and that what v1alpha1 lacks survives an update by such a client.
func TestOlderClientsShareAPIs(t *testing.T) {
	t.Parallel()
	p, consumer := newTenant(t), newTenant(t)
	p.create(apiSchemas, widgetSchema("v1", "color"))
	old := func(r schema.GroupVersionResource) schema.GroupVersionResource {
		return r.GroupResource().WithVersion("v1alpha1")
	}
	e := p.create(old(apiExports), decoded(`
apiVersion: apis.kcp.io/v1alpha1
kind: APIExport
metadata: {name: widgets}
spec: {latestResourceSchemas: [v1.widgets.example.com]}
`))
	if e.GetAPIVersion() != "apis.kcp.io/v1alpha1" || text(e, "status", "identityHash") == "" {
		t.Fatalf("the export is %v", e.Object)
	}
	now := must(p.any.Resource(apiExports).Get(t.Context(), "widgets", metav1.GetOptions{}))(t)
	if resources, _, _ := unstructured.NestedSlice(now.Object, "spec", "resources"); len(resources) != 1 || resources[0].(map[string]any)["group"] != "example.com" {
		t.Errorf("in v1alpha2 it is %v", now.Object["spec"])
	}
	b := bindingTo("widgets", p.name, "widgets")
	b.SetAPIVersion("apis.kcp.io/v1alpha1")
	if b = consumer.create(old(apiBindings), b); text(b, "status", "phase") != "Bound" || b.GetAPIVersion() != "apis.kcp.io/v1alpha1" {
		t.Fatalf("the binding is %v", b.Object)
	}
	consumer.create(sharedWidgets, newWidget("w"))
	b.SetLabels(map[string]string{"a": "b"})
	must(consumer.any.Resource(old(apiBindings)).Update(t.Context(), b, metav1.UpdateOptions{}))(t)
	list := must(consumer.any.Resource(old(apiBindings)).List(t.Context(), metav1.ListOptions{LabelSelector: "a=b"}))(t)
	if len(list.Items) != 1 || list.Items[0].GetAPIVersion() != "apis.kcp.io/v1alpha1" {
		t.Errorf("the list is %v", list.Items)
	}
	consumer.create(sharedWidgets, newWidget("still-bound"))
	twice := decoded(`{apiVersion: apis.kcp.io/v1alpha1, kind: APIExport, metadata: {name: twice}, spec: {latestResourceSchemas: [v1.widgets.example.com, v2.widgets.example.com]}}`)
	if _, err := p.any.Resource(old(apiExports)).Create(t.Context(), twice, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "has the schemas") {
		t.Errorf("two schemas of a resource: %v", err)
	}
}

// TestABindingKeepsWhatIsStored shows that no change of an export takes the objects of its
// bindings away: neither its deletion, nor another identity, nor the removal of a resource.
func TestABindingKeepsWhatIsStored(t *testing.T) {
	t.Parallel()
	p, consumer := exporter(t), newTenant(t)
	consumer.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	uid := consumer.create(sharedWidgets, newWidget("w")).GetUID()
	still := func(when string) {
		t.Helper()
		w := must(consumer.any.Resource(sharedWidgets).Namespace("default").Get(t.Context(), "w", metav1.GetOptions{}))(t)
		if w.GetUID() != uid {
			t.Errorf("%s: it is %v", when, w.Object)
		}
	}
	if _, err := p.any.Resource(apiExports).Patch(t.Context(), "widgets", types.MergePatchType, []byte(`{"spec":{"resources":[]}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := p.any.Resource(apiExports).Delete(t.Context(), "widgets", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.await(apiExports, "", "widgets", gone)
	consumer.await(apiBindings, "", "widgets", func(o *unstructured.Unstructured) bool {
		return conditionOf(o, "APIExportValid") == "False APIExportNotFound"
	})
	still("without the export")
	if b := must(consumer.any.Resource(apiBindings).Get(t.Context(), "widgets", metav1.GetOptions{}))(t); conditionOf(b, "Ready") != "True" || conditionOf(b, "InitialBindingCompleted") != "True" {
		t.Errorf("a binding that was bound is not Ready any more: %v", b.Object["status"])
	}
	other := widgetExport("widgets", "v1")
	_ = unstructured.SetNestedStringMap(other.Object, map[string]string{"namespace": "default", "name": "other"}, "spec", "identity", "secretRef")
	must(p.kube.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "other"}, StringData: map[string]string{"key": "other"}}, metav1.CreateOptions{}))(t)
	p.create(apiExports, other)
	consumer.await(apiBindings, "", "widgets", func(o *unstructured.Unstructured) bool {
		return conditionOf(o, "APIExportValid") == "False APIExportInvalidReference"
	})
	still("with another identity")
	if err := p.any.Resource(apiExports).Delete(t.Context(), "widgets", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.await(apiExports, "", "widgets", gone)
	p.create(apiExports, widgetExport("widgets", "v1")) // its secret has stayed
	consumer.await(apiBindings, "", "widgets", func(o *unstructured.Unstructured) bool { return conditionOf(o, "APIExportValid") == "True" })
	still("with the old identity")
}

// TestAWorkspaceWithABindingIsDeleted shows that the deletion of a workspace deletes its
// bindings with their objects, and that of others not.
func TestAWorkspaceWithABindingIsDeleted(t *testing.T) {
	t.Parallel()
	p, home := exporter(t), newTenant(t)
	p.provides("pat")
	for _, name := range []string{"ends", "stays"} {
		w := home.workspace(name)
		w.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
		w.create(sharedWidgets, newWidget("in-"+name))
	}
	workspaces := schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspaces"}
	if err := home.any.Resource(workspaces).Delete(t.Context(), "ends", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	home.await(workspaces, "", "ends", gone)
	list := must(p.view("pat").widgets("*").List(t.Context(), metav1.ListOptions{}))(t)
	if len(list.Items) != 1 || list.Items[0].GetName() != "in-stays" {
		t.Errorf("in the view are %v", list.Items)
	}
}

// TestDefinitionsOfUnusedSchemasAreDeleted shows that the server keeps the definition of a
// schema only while the schema exists or a binding uses it.
func TestDefinitionsOfUnusedSchemasAreDeleted(t *testing.T) {
	t.Parallel()
	p, consumer := exporter(t), newTenant(t)
	consumer.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	uid := string(must(p.any.Resource(apiSchemas).Get(t.Context(), "v1.widgets.example.com", metav1.GetOptions{}))(t).GetUID())
	bound := &tenant{t: t, server: p.server, name: cluster.BoundDefinitions, any: must(dynamic.NewForConfig(p.server.InProcess(string(cluster.BoundDefinitions), server.System())))(t)}
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	bound.await(crds, "", uid, there)
	if err := p.any.Resource(apiSchemas).Delete(t.Context(), "v1.widgets.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	consumer.create(sharedWidgets, newWidget("still-served"))
	if err := consumer.any.Resource(apiBindings).Delete(t.Context(), "widgets", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	bound.await(crds, "", uid, gone)
}
