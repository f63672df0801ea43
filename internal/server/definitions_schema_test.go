package server_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
)

// Objects are defaulted, pruned and validated by the schema of their cluster.
func TestSchemasOfDefinitions(t *testing.T) {
	t.Parallel()
	c, other := newTenant(t), newTenant(t)
	d := c.newKind(crd(t, "widgets", schemaOf(`
		{type: object, properties: {spec: {type: object, default: {}, properties: {
			size: {type: integer, default: 7, maximum: 100},
			fixed: {type: string, x-kubernetes-validations: [{rule: "self == oldSelf", message: "it is fixed"}]},
			kept: {type: object, x-kubernetes-preserve-unknown-fields: true}},
			x-kubernetes-validations: [{rule: "!has(self.size) || self.size != 13", message: "no luck"}]}}}`)))
	other.newKind(crd(t, "widgets", schemaOf(`
		{type: object, properties: {spec: {type: object, properties: {size: {type: string, enum: [large]}}}}}`)))
	o := c.instance(d, "o", "spec: {fixed: a, other: 1, kept: {any: 2}}\nextra: 3")
	if got := fmt.Sprint(o.Object["spec"]); got != "map[fixed:a kept:map[any:2] size:7]" || o.Object["extra"] != nil {
		t.Errorf("stored is %v", o.Object)
	}
	if o := other.instance(d, "o", "spec: {size: large, fixed: a}"); fmt.Sprint(o.Object["spec"]) != "map[size:large]" {
		t.Errorf("elsewhere stored is %v", o.Object)
	}
	for spec, want := range map[string]string{"{size: 101}": "less than or equal to 100", "{size: 13}": "no luck", "{size: large}": "must be of type integer"} {
		if _, err := c.of(d).Create(t.Context(), instance(d, "bad", "spec: "+spec), metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", spec, err)
		}
	}
	patch := func(p string) error {
		_, err := c.of(d).Patch(t.Context(), "o", types.MergePatchType, []byte(p), metav1.PatchOptions{})
		return err
	}
	if err := patch(`{"spec":{"fixed":"b"}}`); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "it is fixed") {
		t.Errorf("what is fixed has changed: %v", err)
	}
	// Existing values that are no longer valid may stay.
	must(c.redefine(d.Name, schemaOf("{type: object, properties: {spec: {type: object, properties: {size: {type: integer, maximum: 5}, color: {type: string}}}}}")))(t)
	if err := patch(`{"spec":{"color":"red"}}`); err != nil {
		t.Errorf("beside what is no longer valid: %v", err)
	}
	if err := patch(`{"spec":{"size":6}}`); !apierrors.IsInvalid(err) {
		t.Errorf("what is not valid: %v", err)
	}
}

// Validation rules that are too expensive are refused before they run.
func TestExpensiveSchemas(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	for name, schema := range map[string]string{
		"all pairs": `{type: object, properties: {spec: {type: object, properties: {a: {type: array, items: {type: string}}}, x-kubernetes-validations: [{rule: "self.a.all(x, self.a.all(y, self.a.all(z, x != y && y != z)))"}]}}}`,
		"in a list": `{type: object, properties: {spec: {type: array, items: {type: object, properties: {a: {type: array, items: {type: string}}}, x-kubernetes-validations: [{rule: "self.a.all(x, x.matches('a'))"}]}}}}`,
	} {
		if _, err := c.crds().Create(t.Context(), crd(t, "widgets", schemaOf(schema)), metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "exceeds budget") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, schema := range map[string]string{
		"a pattern": `{type: object, properties: {spec: {type: string, pattern: "` + strings.Repeat(".{1000}", 3000) + `"}}}`,
		"a rule":    `{type: object, properties: {spec: {type: string, maxLength: 5, x-kubernetes-validations: [{rule: "self.matches('` + strings.Repeat(".{1000}", 3000) + `')"}]}}}`,
	} {
		d := crd(t, "widgets", schemaOf(schema))
		if _, err := c.crds().Create(t.Context(), d, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "repeats too much") {
			t.Errorf("%s that compiles to 128 MiB: %.300v", name, err)
		}
	}
	d := c.newKind(crd(t, "widgets", schemaOf(`{type: object, properties: {spec: {type: object, properties: {a: {type: array, maxItems: 1000, items: {type: integer}}, s: {type: string, pattern: "^(a+)+$"}}, x-kubernetes-validations: [{rule: "!has(self.a) || self.a.all(x, self.a.exists(e, e == x))"}]}}}`)))
	c.instance(d, "cheap", "spec: {a: [1, 2, 3]}")
	if _, err := c.of(d).Create(t.Context(), instance(d, "s", "spec: {s: "+strings.Repeat("a", 100000)+"b}"), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a pattern that others take for ever to match: %v", err)
	}
	all := make([]string, 1000)
	for i := range all {
		all[i] = fmt.Sprint(i)
	}
	_, err := c.of(d).Create(t.Context(), instance(d, "dear", "spec: {a: ["+strings.Join(all, ", ")+"]}"), metav1.CreateOptions{})
	exceeded := apierrors.IsInvalid(err) && strings.Contains(err.Error(), "cost limit exceeded")
	if !exceeded && !apierrors.IsTimeout(err) { // a slow machine reaches the timeout first
		t.Errorf("a rule that takes its time: %.300v", err)
	}
}

// Schemas up to the size and depth of a request are accepted or refused with an error.
func TestLargeSchemas(t *testing.T) {
	t.Parallel()
	c, beside := newTenant(t), newTenant(t)
	v := c.owner()
	post := func(name, schema string) answer {
		body := fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[1]ss.example.com"},"spec":{"group":"example.com","scope":"Namespaced",
			"names":{"plural":"%[1]ss","kind":"%[3]s"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":%[2]s}}]}}`, name, schema, strings.ToUpper(name[:1])+name[1:])
		return v.send("POST", c.path("/apis/apiextensions.k8s.io/v1/customresourcedefinitions"), body, "Content-Type", "application/json")
	}
	var wide strings.Builder
	wide.WriteString(`{"type":"object","properties":{"x":{"type":"string"}`)
	for i := 0; wide.Len() < 1<<20; i++ {
		fmt.Fprintf(&wide, `,"p%d":{"type":"object","properties":{"s":{"type":"string","description":%q}}}`, i, strings.Repeat("d", 200))
	}
	wide.WriteString("}}")
	deep := func(n int) string {
		return nested(`{"type":"object","properties":{"a":`, `{"type":"string"}`, `}}`, n)
	}
	for name, tc := range map[string]struct {
		schema string
		ok     bool
	}{
		"wide":     {wide.String(), true},
		"deep":     {deep(100), true},
		"deeper":   {deep(4000), false},
		"toodeep":  {deep(20000), false},
		"toolarge": {`{"type":"object","description":"` + strings.Repeat("d", 4<<20) + `"}`, false},
	} {
		a := post(name, tc.schema)
		if a.broken() || (tc.ok && !a.ok()) {
			t.Errorf("%s: %d %.500s", name, a.code, a.body)
		}
		if !a.ok() {
			continue
		}
		d := crd(t, name+"s")
		if _, err := c.of(d).Create(t.Context(), instance(d, "o", `x: ok`), metav1.CreateOptions{}); err != nil && !apierrors.IsInvalid(err) {
			t.Errorf("%s: %.500v", name, err)
		}
		for _, path := range []string{"/openapi/v3/apis/example.com/v1", "/apis/example.com/v1"} {
			if a := v.send("GET", c.path(path), ""); !a.ok() {
				t.Errorf("%s of %s: %d %.300s", path, name, a.code, a.body)
			}
		}
	}
	// In protobuf, nesting needs few bytes, so decoding deep objects could exhaust the stack.
	if a := v.send("POST", c.path(definitionsPath), deepDefinition(300_000), "Content-Type", "application/vnd.kubernetes.protobuf"); a.code != 400 || !strings.Contains(a.body, "nested deeper than 10000 levels") {
		t.Errorf("deep in protobuf: %d %.300s", a.code, a.body)
	}
	if a := v.send("DELETE", c.path(definitionsPath+"/none"), deepDefinition(300_000), "Content-Type", "application/vnd.kubernetes.protobuf"); a.code != 400 {
		t.Errorf("deep in protobuf as options: %d %.300s", a.code, a.body)
	}
	alive(t, beside, beside.owner(), "beside")
}

// deepDefinition returns a definition in protobuf whose schema has n levels.
func deepDefinition(n int) string {
	sizes := make([]int, n+1)
	for i := range n {
		sizes[i+1] = sizes[i] + 2 + len(binary.AppendUvarint(nil, uint64(sizes[i])))
	}
	var schema []byte
	for i := n - 1; i >= 0; i-- {
		schema = binary.AppendUvarint(append(schema, 0xe2, 0x01), uint64(sizes[i])) // field 28, "not"
	}
	field := func(number byte, values ...[]byte) []byte {
		value := slices.Concat(values...)
		return append(binary.AppendUvarint([]byte{number<<3 | 2}, uint64(len(value))), value...)
	}
	version := field(7, field(1, []byte("v1")), field(4, field(1, schema)))
	object := slices.Concat(field(1, field(1, []byte("deeps.example.com"))), field(2, field(1, []byte("example.com")), version))
	kind := field(1, field(1, []byte("apiextensions.k8s.io/v1")), field(2, []byte("CustomResourceDefinition")))
	return "k8s\x00" + string(slices.Concat(kind, field(2, object)))
}

// Objects of a definition, and definitions, have managed fields.
func TestAppliedCustomResources(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	d := crd(t, "widgets", schemaOf("{type: object, properties: {spec: {type: object, properties: {a: {type: string}, l: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k], items: {type: object, required: [k], properties: {k: {type: string}}}}}}}}"))
	d.APIVersion, d.Kind = "apiextensions.k8s.io/v1", "CustomResourceDefinition"
	for i, manager := range []string{"one", "two"} {
		applied := d.DeepCopy()
		applied.Spec.Names.ShortNames = []string{fmt.Sprint("w", i)}
		got, err := c.any.Resource(definitions).Apply(t.Context(), d.Name, unstructuredOf(t, applied), metav1.ApplyOptions{FieldManager: manager})
		if (i == 0) != (err == nil) || (i == 1 && (!apierrors.IsConflict(err) || !strings.Contains(err.Error(), "shortNames"))) {
			t.Errorf("definition applied by %s: %v", manager, err)
		}
		if i == 0 && !strings.Contains(text(got, "status", "conditions"), "InitialNamesAccepted") {
			t.Errorf("applied, and not established: %v", got)
		}
	}
	apply := func(manager, spec string, force bool) error {
		_, err := c.of(d).Apply(t.Context(), "o", instance(d, "o", "spec: "+spec), metav1.ApplyOptions{FieldManager: manager, Force: force})
		return err
	}
	if err := apply("one", "{a: one, l: [{k: left}]}", false); err != nil {
		t.Fatal(err)
	}
	if err := apply("two", "{a: two}", false); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `"one"`) {
		t.Errorf("two managers of one field: %v", err)
	}
	if err := apply("two", "{a: two, l: [{k: right}]}", true); err != nil {
		t.Error(err)
	}
	if o := must(c.of(d).Get(t.Context(), "o", metav1.GetOptions{}))(t); fmt.Sprint(o.Object["spec"]) != "map[a:two l:[map[k:left] map[k:right]]]" {
		t.Errorf("applied by two: %v", o.Object["spec"])
	}
}

// A dry run of a definition serves nothing and claims no names.
func TestDryRunOfDefinitions(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	dry := []string{metav1.DryRunAll}
	d := crd(t, "widgets")
	made := must(c.crds().Create(t.Context(), d, metav1.CreateOptions{DryRun: dry}))(t)
	if !conditionIs(made, apiextensionsv1.Established, "True") {
		t.Errorf("it would be %v", made.Status)
	}
	if _, err := c.of(d).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("served after a dry run: %v", err)
	}
	if made := c.newKind(crd(t, "others", "spec: {names: {kind: Widget, singular: widget, listKind: WidgetList}}")); !conditionIs(made, apiextensionsv1.NamesAccepted, "True") {
		t.Errorf("names are taken by a dry run: %v", made.Status)
	}
	c.newKind(crd(t, "gadgets"))
	g := crd(t, "gadgets")
	if _, err := c.of(g).Create(t.Context(), instance(g, "o"), metav1.CreateOptions{DryRun: dry}); err != nil {
		t.Error(err)
	}
	c.instance(g, "o")
	if err := c.crds().Delete(t.Context(), g.Name, metav1.DeleteOptions{DryRun: dry}); err != nil {
		t.Error(err)
	}
	if _, err := c.of(g).Get(t.Context(), "o", metav1.GetOptions{}); err != nil {
		t.Errorf("after a dry run of the deletion: %v", err)
	}
	if got := must(c.crds().Get(t.Context(), g.Name, metav1.GetOptions{}))(t); got.DeletionTimestamp != nil {
		t.Error("a dry run deletes a definition")
	}
}

// Requests in unusual formats get the same responses as for built-in kinds.
func TestFormsOfCustomResources(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	d := c.newKind(crd(t, "widgets", schemaOf("{type: object, properties: {spec: {type: object, properties: {a: {type: string}}}}}")))
	v := c.owner()
	const all = "/apis/example.com/v1/namespaces/default/widgets"
	body := func(name string) string {
		return fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":%q},"spec":{"a":"x","b":"y"}}`, name)
	}
	for how, code := range map[string]int{"Strict": 400, "Warn": 201, "Ignore": 201} {
		if a := v.send("POST", c.path(all+"?fieldValidation="+how), body(strings.ToLower(how)), "Content-Type", "application/json"); a.code != code || (how == "Warn") != (a.header.Get("Warning") != "") {
			t.Errorf("%s: %d %s %v", how, a.code, a.body, a.header)
		}
	}
	if a := v.send("POST", c.path(all), "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: yaml}", "Content-Type", "application/yaml"); a.code != 201 {
		t.Errorf("YAML: %d %s", a.code, a.body)
	}
	const protobuf = "application/vnd.kubernetes.protobuf"
	for method, path := range map[string]string{"POST": all, "PUT": all + "/yaml", "PATCH": all + "/yaml"} {
		if a := v.send(method, c.path(path), "k8s\x00\x0a\x00", "Content-Type", protobuf); a.code != 415 {
			t.Errorf("%s of protobuf: %d %s", method, a.code, a.body)
		}
	}
	if a := v.send("GET", c.path(all), "", "Accept", protobuf); a.code != 406 {
		t.Errorf("protobuf wanted: %d %s", a.code, a.body)
	}
	if a := v.send("GET", c.path(all), "", "Accept", protobuf+",application/json"); a.code != 200 || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("protobuf or JSON wanted: %d %v", a.code, a.header)
	}
	if a := v.send("DELETE", c.path(all+"?labelSelector=none"), ""); a.code != 200 {
		t.Errorf("deletion of none: %d %s", a.code, a.body)
	}
	if n := len(must(c.of(d).List(t.Context(), metav1.ListOptions{}))(t).Items); n != 3 {
		t.Errorf("there are %d", n)
	}
	if err := c.of(d).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if n := len(must(c.of(d).List(t.Context(), metav1.ListOptions{}))(t).Items); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// Kinds may have the same names as common kinds of the server.
func TestKindsLikeThoseOfTheServer(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	for plural, kind := range map[string]string{"clusters": "Cluster", "configmaps": "ConfigMap", "workspaces": "Workspace", "customresourcedefinitions": "CustomResourceDefinition"} {
		d := c.newKind(crd(t, plural, "spec: {names: {kind: "+kind+", listKind: "+kind+"List, singular: "+strings.ToLower(kind)+"}}"))
		if !conditionIs(d, apiextensionsv1.Established, "True") {
			t.Errorf("%s: %v", plural, d.Status)
		}
		if o := c.instance(d, "o", "spec: {a: 1}"); o.GetKind() != kind || text(o, "spec", "a") != "1" {
			t.Errorf("%s: %v", plural, o)
		}
	}
	all, err := must(discovery.NewDiscoveryClientForConfig(c.config()))(t).ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, g := range all {
		gv := must(schema.ParseGroupVersion(g.GroupVersion))(t)
		for _, r := range g.APIResources {
			found[r.Name+"/"+gv.Group]++
		}
	}
	for _, r := range []string{"configmaps/", "configmaps/example.com", "workspaces/tenancy.kcp.io", "workspaces/example.com", "customresourcedefinitions/apiextensions.k8s.io", "clusters/example.com"} {
		if found[r] != 1 {
			t.Errorf("%s is found %d times", r, found[r])
		}
	}
	c.configMap("still")
}
