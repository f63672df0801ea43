package server_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

type definition = apiextensionsv1.CustomResourceDefinition

// crd returns a definition in example.com with the given plural name, and a schema that
// allows any field. The changes are YAML that is merged over it.
func crd(t testing.TB, plural string, changes ...string) *definition {
	t.Helper()
	kind := strings.ToUpper(plural[:1]) + strings.TrimSuffix(plural[1:], "s")
	text := fmt.Sprintf(`{
		"metadata": {"name": "%[1]s.example.com"},
		"spec": {
			"group": "example.com", "scope": "Namespaced",
			"names": {"plural": "%[1]s", "singular": "%[2]s", "kind": "%[3]s", "listKind": "%[3]sList"},
			"versions": [{"name": "v1", "served": true, "storage": true,
				"schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]
		}}`, plural, strings.ToLower(kind), kind)
	d := &definition{}
	for _, y := range append([]string{text}, changes...) {
		if strings.Contains(y, "versions:") {
			d.Spec.Versions = nil // a merge would append to the list
		}
		if err := yaml.UnmarshalStrict([]byte(y), d); err != nil {
			t.Fatalf("%v in %s", err, y)
		}
	}
	return d
}

// schemaOf returns a change for [crd] that sets the schema and further fields of its only
// version.
func schemaOf(schema string, more ...string) string {
	return "spec: {versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: " + schema + "}" + strings.Join(append([]string{""}, more...), ", ") + "}]}"
}

func (c *tenant) crds() apiextensionsclient.CustomResourceDefinitionInterface {
	c.t.Helper()
	return must(apiextensionsclient.NewForConfig(c.config()))(c.t).CustomResourceDefinitions()
}

func (c *tenant) newKind(d *definition) *definition {
	c.t.Helper()
	return must(c.crds().Create(c.t.Context(), d, metav1.CreateOptions{}))(c.t)
}

// redefine patches a definition.
func (c *tenant) redefine(name, patch string, subresources ...string) (*definition, error) {
	c.t.Helper()
	j := must(yaml.YAMLToJSON([]byte(patch)))(c.t)
	return c.crds().Patch(c.t.Context(), name, types.MergePatchType, j, metav1.PatchOptions{}, subresources...)
}

func (c *tenant) undefine(name string) {
	c.t.Helper()
	if err := c.crds().Delete(c.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// resourceOf returns the resource of the first version of a definition.
func resourceOf(d *definition) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: d.Spec.Group, Version: d.Spec.Versions[0].Name, Resource: d.Spec.Names.Plural}
}

// of returns a client of a definition's objects, in the namespace default if they are
// namespaced.
func (c *tenant) of(d *definition) dynamic.ResourceInterface {
	if d.Spec.Scope == apiextensionsv1.ClusterScoped {
		return c.any.Resource(resourceOf(d))
	}
	return c.any.Resource(resourceOf(d)).Namespace("default")
}

// instance returns an object of a definition, with the changes merged over it.
func instance(d *definition, name string, more ...string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	for _, y := range more {
		if err := yaml.Unmarshal([]byte(y), &o.Object); err != nil {
			panic(err)
		}
	}
	o.SetAPIVersion(resourceOf(d).GroupVersion().String())
	o.SetKind(d.Spec.Names.Kind)
	o.SetName(name)
	return o
}

func (c *tenant) instance(d *definition, name string, more ...string) *unstructured.Unstructured {
	c.t.Helper()
	return must(c.of(d).Create(c.t.Context(), instance(d, name, more...), metav1.CreateOptions{}))(c.t)
}

func conditionIs(d *definition, t apiextensionsv1.CustomResourceDefinitionConditionType, s apiextensionsv1.ConditionStatus) bool {
	return slices.ContainsFunc(d.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool { return c.Type == t && c.Status == s })
}

// A definition is served when its create request returns. Several writers can create objects
// of many new kinds at once in two clusters.
func TestDefinedIsServed(t *testing.T) {
	t.Parallel()
	tenants := []*tenant{newTenant(t), newTenant(t)}
	var wg sync.WaitGroup
	for who := range 5 {
		wg.Go(func() {
			for i := range 10 {
				c := tenants[(who+i)%2]
				d := crd(t, fmt.Sprintf("ks%dx%d", who, i))
				made, err := c.crds().Create(t.Context(), d, metav1.CreateOptions{})
				if err != nil || !conditionIs(made, apiextensionsv1.Established, "True") || made.Generation != 1 || made.UID == "" {
					t.Errorf("%s: %v, %v", d.Name, err, made.Status)
					continue
				}
				if _, err := c.of(d).Create(t.Context(), instance(d, "o"), metav1.CreateOptions{}); err != nil {
					t.Errorf("%s: %v", d.Name, err)
				}
				if l, err := c.of(d).List(t.Context(), metav1.ListOptions{}); err != nil || len(l.Items) != 1 {
					t.Errorf("%s: %v, %v", d.Name, l, err)
				}
				if _, err := tenants[(who+i+1)%2].of(d).Get(t.Context(), "o", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
					t.Errorf("%s elsewhere: %v", d.Name, err)
				}
			}
		})
	}
	wg.Wait()
	for _, c := range tenants {
		all := must(must(discovery.NewDiscoveryClientForConfig(c.config()))(t).ServerResourcesForGroupVersion("example.com/v1"))(t)
		if len(all.APIResources) != 25 {
			t.Errorf("discovery tells of %d", len(all.APIResources))
		}
	}
}

// Versions are served as defined. Objects can be read in each of them. A version can be
// removed once no object is stored in it.
func TestVersionsOfDefinitions(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	version := func(name string, served, storage bool) string {
		return fmt.Sprintf("{name: %s, served: %t, storage: %t, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}", name, served, storage)
	}
	versions := func(all ...string) string { return "spec: {versions: [" + strings.Join(all, ", ") + "]}" }
	d := c.newKind(crd(t, "widgets", versions(version("v1", true, true), version("v2", true, false), version("v3", false, false))))
	in := func(v string) dynamic.ResourceInterface {
		return c.any.Resource(schema.GroupVersionResource{Group: "example.com", Version: v, Resource: "widgets"}).Namespace("default")
	}
	c.instance(d, "o", "spec: {a: 1}")
	if o := must(in("v2").Get(t.Context(), "o", metav1.GetOptions{}))(t); o.GetAPIVersion() != "example.com/v2" || text(o, "spec", "a") != "1" {
		t.Errorf("as v2: %v", o)
	}
	for _, v := range []string{"v3", "v4"} {
		if _, err := in(v).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v", v, err)
		}
	}
	moved := must(c.redefine(d.Name, versions(version("v1", true, false), version("v2", true, true), version("v3", true, false))))(t)
	if !slices.Equal(moved.Status.StoredVersions, []string{"v1", "v2"}) || moved.Generation != 2 {
		t.Errorf("stored are %v, generation %d", moved.Status.StoredVersions, moved.Generation)
	}
	if o := must(in("v3").Get(t.Context(), "o", metav1.GetOptions{}))(t); text(o, "spec", "a") != "1" {
		t.Errorf("as v3: %v", o)
	}
	without := versions(version("v2", true, true), version("v3", true, false))
	if _, err := c.redefine(d.Name, without); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `status.storedVersions[0]: Invalid value: "v1": missing from spec.versions`) {
		t.Errorf("a version that objects are stored in: %v", err)
	}
	must(in("v2").Patch(t.Context(), "o", types.MergePatchType, []byte(`{"spec":{"a":2}}`), metav1.PatchOptions{}))(t)
	must(c.redefine(d.Name, "status: {storedVersions: [v2]}", "status"))(t)
	if got := must(c.redefine(d.Name, without))(t); !slices.Equal(got.Status.StoredVersions, []string{"v2"}) {
		t.Errorf("stored are %v", got.Status.StoredVersions)
	}
	if o := must(in("v2").Get(t.Context(), "o", metav1.GetOptions{}))(t); text(o, "spec", "a") != "2" {
		t.Errorf("after its first version has gone: %v", o)
	}
	if _, err := in("v1").Get(t.Context(), "o", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a version that has gone: %v", err)
	}
	must(c.redefine(d.Name, versions(version("v2", true, true))))(t)
	if got := must(c.redefine(d.Name, "metadata: {labels: {a: b}}"))(t); got.Generation != 4 {
		t.Errorf("labels change the generation: %d", got.Generation)
	}
}

// Status and scale are separate subresources. The generation counts changes of the spec only.
func TestSubresourcesOfDefinitions(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	d := c.newKind(crd(t, "widgets", schemaOf("{type: object, properties: {spec: {type: object, properties: {replicas: {type: integer}}}, status: {type: object, properties: {replicas: {type: integer}, selector: {type: string}}}}}",
		"subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}}")))
	o := c.instance(d, "o", "spec: {replicas: 3}\nstatus: {replicas: 7}")
	if text(o, "status") != "<nil>" || o.GetGeneration() != 1 {
		t.Errorf("created with a status: %v", o)
	}
	patch := func(p string, sub ...string) *unstructured.Unstructured {
		t.Helper()
		return must(c.of(d).Patch(t.Context(), "o", types.MergePatchType, []byte(p), metav1.PatchOptions{}, sub...))(t)
	}
	if o = patch(`{"spec":{"replicas":9},"status":{"replicas":2,"selector":"a=b"}}`, "status"); text(o, "spec", "replicas") != "3" || text(o, "status", "replicas") != "2" || o.GetGeneration() != 1 {
		t.Errorf("status patched: %v", o)
	}
	if o = patch(`{"spec":{"replicas":4},"status":{"replicas":8}}`); text(o, "spec", "replicas") != "4" || text(o, "status", "replicas") != "2" || o.GetGeneration() != 2 {
		t.Errorf("patched: %v", o)
	}
	scale := must(c.of(d).Get(t.Context(), "o", metav1.GetOptions{}, "scale"))(t)
	if scale.GetKind() != "Scale" || text(scale, "spec", "replicas") != "4" || text(scale, "status", "replicas") != "2" || text(scale, "status", "selector") != "a=b" {
		t.Errorf("scale: %v", scale)
	}
	if err := unstructured.SetNestedField(scale.Object, int64(6), "spec", "replicas"); err != nil {
		t.Fatal(err)
	}
	must(c.of(d).Update(t.Context(), scale, metav1.UpdateOptions{}, "scale"))(t)
	if o = must(c.of(d).Get(t.Context(), "o", metav1.GetOptions{}))(t); text(o, "spec", "replicas") != "6" || o.GetGeneration() != 3 {
		t.Errorf("scaled: %v", o)
	}
	must(c.redefine(d.Name, schemaOf("{type: object, x-kubernetes-preserve-unknown-fields: true}")))(t)
	if _, err := c.of(d).Get(t.Context(), "o", metav1.GetOptions{}, "scale"); !apierrors.IsNotFound(err) {
		t.Errorf("scale after it was taken away: %v", err)
	}
	if o = patch(`{"status":{"replicas":1}}`); text(o, "status", "replicas") != "1" {
		t.Errorf("a status that is a field like others: %v", o)
	}
}

// Columns, categories, short names and selectable fields are those of the cluster's own
// definition.
func TestPresentationOfDefinitions(t *testing.T) {
	t.Parallel()
	one, two := newTenant(t), newTenant(t)
	made := func(c *tenant, column, short string) *definition {
		return c.newKind(crd(t, "widgets", schemaOf("{type: object, properties: {spec: {type: object, properties: {color: {type: string}}}}}",
			"additionalPrinterColumns: [{name: "+column+", type: string, jsonPath: .spec.color}]", "selectableFields: [{jsonPath: .spec.color}]"),
			"spec: {names: {categories: [toys], shortNames: ["+short+"]}}"))
	}
	d := made(one, "Colour", "wi")
	made(two, "Color", "wg")
	for c, want := range map[*tenant][2]string{one: {"Colour", "wi"}, two: {"Color", "wg"}} {
		for _, color := range []string{"red", "blue"} {
			c.instance(d, color, "spec: {color: "+color+"}")
		}
		var table metav1.Table
		if err := c.kube.CoreV1().RESTClient().Get().AbsPath("/apis/example.com/v1/namespaces/default/widgets").
			SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(t.Context()).Into(&table); err != nil {
			t.Fatal(err)
		}
		if len(table.ColumnDefinitions) != 2 || table.ColumnDefinitions[1].Name != want[0] || len(table.Rows) != 2 || fmt.Sprint(table.Rows[0].Cells) != "[blue blue]" {
			t.Errorf("table of %v", table)
		}
		all := must(must(discovery.NewDiscoveryClientForConfig(c.config()))(t).ServerResourcesForGroupVersion("example.com/v1"))(t)
		if len(all.APIResources) != 1 || fmt.Sprint(all.APIResources[0].ShortNames, all.APIResources[0].Categories) != "["+want[1]+"] [toys]" {
			t.Errorf("discovery says %v", all.APIResources)
		}
		red := metav1.ListOptions{FieldSelector: "spec.color=red"}
		w := must(c.of(d).Watch(t.Context(), red))(t)
		if e := next(t, w); e.Object.(*unstructured.Unstructured).GetName() != "red" {
			t.Errorf("a watch of what is red begins with %v", e)
		}
		c.instance(d, "sky", "spec: {color: blue}")
		c.instance(d, "rose", "spec: {color: red}")
		if e := next(t, w); e.Object.(*unstructured.Unstructured).GetName() != "rose" {
			t.Errorf("a watch of what is red goes on with %v", e)
		}
		w.Stop()
		if l := must(c.of(d).List(t.Context(), red))(t); len(l.Items) != 2 {
			t.Errorf("%d are red", len(l.Items))
		}
		if _, err := c.of(d).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.size=1"}); !apierrors.IsBadRequest(err) {
			t.Errorf("a field that is not selectable: %v", err)
		}
	}
}

func unstructuredOf(t *testing.T, o any) *unstructured.Unstructured {
	t.Helper()
	content := must(runtime.DefaultUnstructuredConverter.ToUnstructured(o))(t)
	unstructured.RemoveNestedField(content, "status")
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	return &unstructured.Unstructured{Object: content}
}
