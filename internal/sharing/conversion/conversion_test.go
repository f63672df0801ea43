package conversion_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/sharing/conversion"
)

const people = `
spec:
  group: example.com
  names: {plural: people, kind: Person}
  versions:
  - name: v1
    served: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {
      fullName: {type: string}, age: {type: integer}, tags: {type: array, items: {type: string}}, size: {type: string}, any: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}}}
  - name: v2
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {
      name: {type: object, properties: {first: {type: string}, last: {type: string}}}, age: {type: integer}, color: {type: string, enum: [red, blue]},
      tags: {type: object, additionalProperties: {type: string}}, size: {type: object, properties: {text: {type: string}}}, ratio: {type: number}}}}}}
  - name: v3
    served: false
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {first: {type: string}}}}}}
`

const rules = `
- from: v1
  to: v2
  rules:
  - {field: .spec.fullName, destination: .spec.name.first, transformation: "self.split(' ')[0]"}
  - {field: spec.size, destination: spec.size.text}
  - {field: spec.any, destination: spec.ratio, transformation: "has(self.ratio) ? optional.of(double(self.ratio)) : optional.none()"}
  - {field: spec.tags, destination: spec.tags, transformation: "self.transformMapEntry(i, t, {t: string(i)})"}
- from: v2
  to: v1
  rules:
  - {field: spec.name, destination: spec.fullName, transformation: "self.first + ' ' + self.last"}
  - {field: spec.size.text, destination: spec.size}
  - {field: spec.tags, destination: spec.tags, transformation: "self.map(k, k)"}
  preserve: [.spec.color, spec.name.last]
- from: v2
  to: v3
  rules: [{field: spec.name.first, destination: spec.first}]
`

func parsed[T any](t testing.TB, text string) *T {
	t.Helper()
	out := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), out); err != nil {
		t.Fatal(err)
	}
	return out
}

func compile(t testing.TB, rules string) (*conversion.Conversion, string) {
	t.Helper()
	crd := parsed[apiextensionsv1.CustomResourceDefinition](t, people)
	c, errs := conversion.Compile(crd, parsed[apisv1alpha1.APIConversionSpec](t, "conversions: "+rules))
	if len(errs) == 0 {
		return c, ""
	}
	return c, errs.ToAggregate().Error()
}

func person(t testing.TB, version, spec string) *unstructured.Unstructured {
	t.Helper()
	text, err := yaml.YAMLToJSON(fmt.Appendf(nil, "{apiVersion: example.com/%s, kind: Person, metadata: {name: a}, spec: %s}", version, spec))
	o := &unstructured.Unstructured{}
	if err == nil {
		err = o.UnmarshalJSON(text)
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func convert(t testing.TB, c *conversion.Conversion, o *unstructured.Unstructured, to string) *unstructured.Unstructured {
	t.Helper()
	out, err := c.Convert(t.Context(), o, "example.com/"+to)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestConvert(t *testing.T) {
	c, wrong := compile(t, rules)
	if wrong != "" {
		t.Fatal(wrong)
	}
	stored := person(t, "v2", `{name: {first: Ada, last: Lovelace}, age: 36, color: red, tags: {a: "0"}, size: {text: big}}`)
	before := stored.DeepCopy()
	old := convert(t, c, stored, "v1")
	want := person(t, "v1", `{fullName: Ada Lovelace, age: 36, tags: [a], size: big}`)
	want.SetAnnotations(map[string]string{"preserve.conversion.apis.kcp.io/v2": `{"spec.color":"red","spec.name.last":"Lovelace"}`})
	if diff := cmp.Diff(want.Object, old.Object); diff != "" {
		t.Errorf("in v1: %s", diff)
	}
	if diff := cmp.Diff(before.Object, stored.Object); diff != "" {
		t.Errorf("the object is changed: %s", diff)
	}
	back := convert(t, c, old, "v2")
	unstructured.RemoveNestedField(back.Object, "spec", "fullName")
	if diff := cmp.Diff(before.Object, back.Object); diff != "" {
		t.Errorf("a round trip: %s", diff)
	}
	// Through the storage version.
	if first, _, _ := unstructured.NestedString(convert(t, c, old, "v3").Object, "spec", "first"); first != "Ada" {
		t.Errorf("in v3 the first name is %q", first)
	}
	if _, err := c.Convert(t.Context(), person(t, "v3", `{first: a}`), "example.com/v1"); err == nil || !strings.Contains(err.Error(), "does not convert v3 to v1") {
		t.Errorf("without rules: %v", err)
	}
	numbers := convert(t, c, person(t, "v1", `{any: {ratio: 3}}`), "v2")
	if ratio, ok, _ := unstructured.NestedFieldNoCopy(numbers.Object, "spec", "ratio"); ratio != 3.0 || !ok {
		t.Errorf("ratio is %v", ratio)
	}
	if _, ok, _ := unstructured.NestedFieldNoCopy(convert(t, c, person(t, "v1", `{any: {}}`), "v2").Object, "spec", "ratio"); ok {
		t.Error("an empty optional sets a field")
	}
}

// TestFieldsThatMove leaves out fields that an expression reads and the other version lacks. A field of which
// only a part is read, or that is only tested, stays.
func TestFieldsThatMove(t *testing.T) {
	c, wrong := compile(t, `
- {from: v1, to: v2, rules: [{field: spec.fullName, destination: spec.name.first}]}
- from: v2
  to: v1
  rules:
  - {field: spec, destination: spec.fullName, transformation: "self.name.first + self.?color.orValue('') + (has(self.ratio) ? '!' : '') + string(self.age)"}
`)
	if wrong != "" {
		t.Fatal(wrong)
	}
	got := convert(t, c, person(t, "v2", `{name: {first: Ada, last: Lovelace}, color: red, ratio: 2, age: 36}`), "v1")
	if diff := cmp.Diff(person(t, "v1", `{fullName: "Adared!36", name: {last: Lovelace}, ratio: 2, age: 36}`).Object, got.Object); diff != "" {
		t.Error(diff)
	}
}

// A consumer writes the annotation of preserved fields.
func TestForgedAnnotation(t *testing.T) {
	c, _ := compile(t, rules)
	for text, want := range map[string]map[string]any{
		`{"spec.color":"blue"}`:    {"color": "blue"},
		`{"spec.color":"green"}`:   {}, // not in the schema
		`{"spec.color":{"a":1}}`:   {},
		`{"spec.name.last":7}`:     {},
		`{"metadata.name":"b"}`:    {},
		`{"spec.age":1,"spec":{}}`: {}, // not preserved by the APIConversion
		`{`:                        {},
		`[]`:                       {},
	} {
		o := person(t, "v1", `{}`)
		o.SetAnnotations(map[string]string{"preserve.conversion.apis.kcp.io/v2": text})
		got := convert(t, c, o, "v2")
		spec, _, _ := unstructured.NestedMap(got.Object, "spec")
		if diff := cmp.Diff(want, spec); diff != "" || got.GetName() != "a" || got.GetAnnotations() != nil {
			t.Errorf("%s: %s, %v", text, diff, got.Object["metadata"])
		}
	}
}

func manyConversions() string {
	var all []string
	for i := range 33 {
		all = append(all, fmt.Sprintf("{from: v1, to: v%d, rules: []}", i+2))
	}
	return strings.Join(all, ", ")
}

func TestMistakes(t *testing.T) {
	both := func(rule string) string {
		return `[{from: v1, to: v2, rules: [` + rule + `]}, {from: v2, to: v1, rules: []}]`
	}
	for rules, want := range map[string]string{
		`[{from: v1, to: v2, rules: []}]`:                                                                                                 "add a conversion from v2 to v1",
		`[{from: v1, to: v9, rules: []}]`:                                                                                                 "no such version",
		`[{from: v1, to: v1, rules: []}]`:                                                                                                 "another version",
		`[` + manyConversions() + `]`:                                                                                                     "must have at most 32 items",
		both(`{field: spec.none, destination: spec.age}`):                                                                                 "version v1 has no such field",
		both(`{field: spec.age, destination: spec.none}`):                                                                                 "version v2 has no such field",
		both(`{field: metadata.name, destination: spec.color}`):                                                                           "same in all versions",
		both(`{field: spec.age, destination: kind}`):                                                                                      "same in all versions",
		both(`{field: spec..age, destination: spec.age}`):                                                                                 "names of fields",
		both(`{field: spec.age, destination: spec.color}`):                                                                                "add a transformation",
		both(`{field: spec.age, destination: spec.color, transformation: self}`):                                                          "of type int",
		both(`{field: spec.age, destination: spec.age, transformation: "self +"}`):                                                        "no valid CEL expression",
		both(`{field: spec.age, destination: spec.age, transformation: other}`):                                                           "undeclared reference",
		both(`{field: spec.fullName, destination: spec.name.last, transformation: self.none}`):                                            "does not support field selection",
		both(`{field: spec.fullName, destination: spec.name.last}, {field: spec.any, destination: spec.name}`):                            "set each field once",
		both(`{field: spec.age, destination: spec.age, transformation: "` + strings.Repeat("1+", 3000) + `1"}`):                           "longer than",
		both(`{field: spec.age, destination: spec.age, transformation: "'a'.matches('` + strings.Repeat("a{1000}", 500) + `') ? 1 : 2"}`): "repeats too much",
		both(strings.TrimSuffix(strings.Repeat(`{field: spec.age, destination: spec.age}, `, 257), ", ")):                                 "at most 256",
		`[{from: v1, to: v2, rules: [], preserve: [spec.none]}, {from: v2, to: v1, rules: [], preserve: [metadata]}]`:                     "preserve[0]",
	} {
		if _, got := compile(t, rules); !strings.Contains(got, want) {
			t.Errorf("%.200s: %q, want %q", rules, got, want)
		}
	}
}

// Expressions and results that cost too much fail, without using the memory or time first.
func TestExpensiveRules(t *testing.T) {
	long := strings.Repeat("a ", 100_000)
	for name, expression := range map[string]string{
		"loops":    "self.split(' ').filter(a, self.split(' ').exists(b, b == a + '!')).size() > 0 ? 'a' : 'b'",
		"patterns": "self.matches('(a|b|ab)*c') || self.matches('(a|b|ab)*d') ? 'a' : 'b'",
	} {
		c, wrong := compile(t, `[{from: v1, to: v2, rules: [{field: spec.fullName, destination: spec.name.first, transformation: "`+expression+`"}]}, {from: v2, to: v1, rules: []}]`)
		if wrong != "" {
			t.Fatal(wrong)
		}
		if _, err := c.Convert(t.Context(), person(t, "v1", `{fullName: "`+long+`"}`), "example.com/v2"); err == nil || !strings.Contains(err.Error(), "costs too much") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A small cost, and a result of gigabytes.
	c, wrong := compile(t, `[{from: v1, to: v2, rules: [{field: spec.any, destination: spec.tags, transformation: "self.keys.transformMapEntry(i, k, {string(i): self.value})"}]}, {from: v2, to: v1, rules: []}]`)
	if wrong != "" {
		t.Fatal(wrong)
	}
	keys, _ := json.Marshal(make([]int, 1000))
	if _, err := c.Convert(t.Context(), person(t, "v1", `{any: {keys: `+string(keys)+`, value: "`+long+`"}}`), "example.com/v2"); err == nil || !strings.Contains(err.Error(), "costs too much") {
		t.Errorf("a large result: %v", err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	c, _ = compile(t, rules)
	if _, err := c.Convert(stopped, person(t, "v1", `{fullName: "`+long+`"}`), "example.com/v2"); err == nil || !strings.Contains(err.Error(), "takes too long") {
		t.Errorf("without time: %v", err)
	}
}
