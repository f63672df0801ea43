package server_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/storage/values"
)

// post sends an object, and decodes a successful response into it.
func (p person) post(target string, o any) (code int, body string) {
	p.t.Helper()
	text := must(json.Marshal(o))(p.t)
	req := must(http.NewRequestWithContext(p.t.Context(), http.MethodPost, "http://kcp"+target, bytes.NewReader(text)))(p.t)
	req.Header.Set("Content-Type", "application/json")
	resp := must(p.server.InProcess("root", p.info).Transport.RoundTrip(req))(p.t)
	defer resp.Body.Close()
	text = must(io.ReadAll(resp.Body))(p.t)
	if resp.StatusCode == http.StatusOK {
		if err := json.Unmarshal(text, o); err != nil {
			p.t.Fatalf("%v in %s", err, text)
		}
	}
	return resp.StatusCode, string(text)
}

func newCheck(candidates ...*unstructured.Unstructured) *apisv1alpha1.APIExportCheck {
	c := &apisv1alpha1.APIExportCheck{TypeMeta: metav1.TypeMeta{APIVersion: "apis.kcp.io/v1alpha1", Kind: "APIExportCheck"}}
	for _, o := range candidates {
		switch o.GetKind() {
		case "APIConversion":
			s, err := values.Typed[apisv1alpha1.APIConversion](o)
			if err != nil {
				panic(err)
			}
			c.Spec.Conversions = append(c.Spec.Conversions, *s)
		default:
			s, err := values.Typed[apisv1alpha1.APIResourceSchema](o)
			if err != nil {
				panic(err)
			}
			c.Spec.Candidates = append(c.Spec.Candidates, *s)
		}
	}
	return c
}

// checked runs a check of the export widgets in parts. It returns the breaks of objects, as "<name>
// <reason> <field> in <version>", and the status with the sums of all parts.
func (p person) checked(of *tenant, c *apisv1alpha1.APIExportCheck) (breaks []string, sum apisv1alpha1.APIExportCheckStatus) {
	p.t.Helper()
	spec := c.Spec
	for range 1000 {
		c.Spec.Candidates, c.Spec.Conversions = spec.Candidates, spec.Conversions
		if code, body := p.post("/services/apiexportcheck/"+string(of.name)+"/widgets", c); code != http.StatusOK {
			p.t.Fatalf("%d %s", code, body)
		}
		s := c.Status
		sum.Add(&s, 1000)
		if len(s.BrokenObjects) > 100 {
			p.t.Fatalf("%d broken objects in one answer", len(s.BrokenObjects))
		}
		for _, o := range s.BrokenObjects {
			for _, b := range o.Breaks {
				breaks = append(breaks, fmt.Sprintf("%s %s %s in %s", o.Name, b.Reason, b.Field, b.Version))
			}
		}
		if c.Spec.Continue = s.Continue; s.Continue == "" {
			slices.Sort(breaks)
			return breaks, sum
		}
		c.Status = apisv1alpha1.APIExportCheckStatus{}
	}
	p.t.Fatal("the check does not end")
	return nil, sum
}

// changedWidgets returns an APIResourceSchema of widgets whose versions are given as JSON.
func changedWidgets(scope string, versions ...string) *unstructured.Unstructured {
	o := widgetSchema("next", "color")
	_ = unstructured.SetNestedField(o.Object, scope, "spec", "scope")
	if len(versions) > 1 {
		_ = unstructured.SetNestedMap(o.Object, map[string]any{"strategy": "None"}, "spec", "conversion")
	}
	var all []any
	for _, v := range versions {
		all = append(all, decoded("%s", v).Object)
	}
	_ = unstructured.SetNestedSlice(o.Object, all, "spec", "versions")
	return o
}

// TestAProviderChecksSchemas shows which objects of consumers a schema would break, and where.
func TestAProviderChecksSchemas(t *testing.T) {
	t.Parallel()
	p, stranger, a, b := exporter(t), exporter(t), newTenant(t), newTenant(t)
	p.provides("pat")
	for of, from := range map[*tenant]*tenant{a: p, b: p, newTenant(t): stranger} {
		of.create(apiBindings, bindingTo("widgets", from.name, "widgets"))
		of.create(sharedWidgets, decoded(`{apiVersion: example.com/v1, kind: Widget, metadata: {name: small}, spec: {size: 1}}`))
	}
	a.create(sharedWidgets, decoded(`{apiVersion: example.com/v1, kind: Widget, metadata: {name: red}, spec: {size: 5, color: red}}`))
	pat := person{t, p.server, as("pat").(*user.DefaultInfo)}
	const spec = `{name: v1, served: true, storage: true, schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer%s}, color: {type: string}}%s}}}}`
	const second = `{name: v2, served: true, storage: %t, schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}%s}}}}}`
	for name, c := range map[string]struct {
		next   *unstructured.Unstructured
		breaks []string
		ends   string // of version v1
	}{
		"no change":                           {widgetSchema("next", "color"), nil, "Served"},
		"a stricter schema":                   {changedWidgets("Namespaced", fmt.Sprintf(spec, ", minimum: 2", "")), []string{"small Invalid spec.size in v1", "small Invalid spec.size in v1"}, "Served"},
		"a rule":                              {changedWidgets("Namespaced", fmt.Sprintf(spec, "", `, x-kubernetes-validations: [{rule: "!has(self.color)"}]`)), []string{"red Invalid spec in v1"}, "Served"},
		"a required field":                    {changedWidgets("Namespaced", fmt.Sprintf(spec, "", ", required: [color]")), []string{"small Invalid spec.color in v1", "small Invalid spec.color in v1"}, "Served"},
		"without a field":                     {widgetSchema("next", "shape"), []string{"red FieldLost spec.color in v1"}, "Served"},
		"another version":                     {changedWidgets("Namespaced", fmt.Sprintf(second, true, ", color: {type: string}")), []string{"red Unreadable  in v1", "small Unreadable  in v1", "small Unreadable  in v1"}, "Removed"},
		"a version not served":                {changedWidgets("Namespaced", strings.Replace(fmt.Sprintf(spec, "", ""), "served: true, storage: true", "served: false, storage: false", 1), fmt.Sprintf(second, true, ", color: {type: string}")), nil, "NotServed"},
		"stored in a version without a field": {changedWidgets("Namespaced", strings.Replace(fmt.Sprintf(spec, "", ""), "storage: true", "storage: false", 1), fmt.Sprintf(second, true, "")), []string{"red FieldLost spec.color in v1"}, "Served"},
		"served in a version without a field": {changedWidgets("Namespaced", fmt.Sprintf(spec, "", ""), fmt.Sprintf(second, false, "")), nil, "Served"},
	} {
		for _, limit := range []int64{0, 1} {
			check := newCheck(c.next)
			check.Spec.Limit = limit
			breaks, sum := pat.checked(p, check)
			if !slices.Equal(breaks, c.breaks) || sum.Checked != 3 || sum.Objects != 3 || sum.Consumers != 2 || len(sum.Problems) > 0 {
				t.Errorf("%s: %q, %+v", name, breaks, sum)
			}
			if v := sum.Versions[0]; len(sum.Versions) != 1 || v.Version != "v1" || string(v.End) != c.ends || v.Stored != 3 || v.Managed != 3 || len(v.Consumers) != 2 {
				t.Errorf("%s: %+v", name, sum.Versions)
			}
		}
	}
	_, sum := pat.checked(p, newCheck(changedWidgets("Cluster", fmt.Sprintf(spec, "", ""))))
	if len(sum.Problems) != 1 || !strings.Contains(sum.Problems[0], "scope changes from Namespaced to Cluster") {
		t.Errorf("another scope: %q", sum.Problems)
	}
	// Schemas that exist, and no schema at all.
	p.create(apiSchemas, widgetSchema("v2", "shape"))
	byName := newCheck()
	byName.Spec.Schemas = []string{"v2.widgets.example.com"}
	if breaks, _ := pat.checked(p, byName); !slices.Equal(breaks, []string{"red FieldLost spec.color in v1"}) {
		t.Errorf("by name: %q", breaks)
	}
	if breaks, sum := pat.checked(p, newCheck()); len(breaks) > 0 || len(sum.Versions) != 1 || sum.Versions[0].Stored != 3 || len(sum.Versions[0].Consumers) != 2 {
		t.Errorf("versions in use: %+v", sum)
	}
}

// TestAProviderChecksConversions shows a check of schemas whose objects rules convert.
func TestAProviderChecksConversions(t *testing.T) {
	t.Parallel()
	p, c := peopleExporter(t, " "), newTenant(t)
	p.provides("pat")
	c.create(apiBindings, bindingTo("people", p.name, "widgets"))
	must(c.people(peopleV2).Create(t.Context(), newPerson("v2", `{first: Ada, last: King, color: red}`), metav1.CreateOptions{}))(t)
	next := peopleSchema()
	next.SetName("v2.people.example.com")
	pat := person{t, p.server, as("pat").(*user.DefaultInfo)}
	conversion := func(name string, change func(*unstructured.Unstructured)) *unstructured.Unstructured {
		o := peopleConversion(" ")
		o.SetName(name)
		change(o)
		return o
	}
	storeV1 := peopleSchema()
	storeV1.SetName("v2.people.example.com")
	versions, _, _ := unstructured.NestedSlice(storeV1.Object, "spec", "versions")
	versions[0].(map[string]any)["storage"], versions[1].(map[string]any)["storage"] = true, false
	_ = unstructured.SetNestedSlice(storeV1.Object, versions, "spec", "versions")
	forget := func(o *unstructured.Unstructured) {
		all, _, _ := unstructured.NestedSlice(o.Object, "spec", "conversions")
		delete(all[0].(map[string]any), "preserve")
		_ = unstructured.SetNestedSlice(o.Object, all, "spec", "conversions")
	}
	fail := func(o *unstructured.Unstructured) {
		all, _, _ := unstructured.NestedSlice(o.Object, "spec", "conversions")
		all[0].(map[string]any)["rules"].([]any)[0].(map[string]any)["transformation"] = "self.first.split('')[7]"
		_ = unstructured.SetNestedSlice(o.Object, all, "spec", "conversions")
	}
	for name, c := range map[string]struct {
		check  *apisv1alpha1.APIExportCheck
		breaks []string
	}{
		"the same rules":   {newCheck(next, conversion("v2.people.example.com", func(*unstructured.Unstructured) {})), nil},
		"stored in v1":     {newCheck(storeV1, conversion("v2.people.example.com", func(*unstructured.Unstructured) {})), nil},
		"without preserve": {newCheck(storeV1, conversion("v2.people.example.com", forget)), []string{"ada FieldLost spec.color in v2"}},
		"rules that fail":  {newCheck(next, conversion("v2.people.example.com", fail)), []string{"ada Unreadable  in v1"}},
		"rules of others":  {newCheck(next, conversion("v3.people.example.com", fail)), []string{"ada FieldLost spec.name in v1"}},
	} {
		if breaks, _ := pat.checked(p, c.check); !slices.Equal(breaks, c.breaks) {
			t.Errorf("%s: %q", name, breaks)
		}
	}
}

// TestHostileChecks shows who may check, what is refused, and that answers have limits.
func TestHostileChecks(t *testing.T) {
	t.Parallel()
	p, other, c := exporter(t), newTenant(t), newTenant(t)
	p.provides("pat")
	p.allows("get", rbacv1.UserKind, "gus", []string{"get"}, "apiexports/content")
	c.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	c.bind("carol", "cluster-admin", rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "carol"})
	other.create(apiSchemas, widgetSchema("elsewhere", "color"))
	for i := range 103 {
		c.create(sharedWidgets, decoded(`{apiVersion: example.com/v1, kind: Widget, metadata: {name: w%03d}, spec: {size: 1}}`, i))
	}
	pat := person{t, p.server, as("pat").(*user.DefaultInfo)}
	at := "/services/apiexportcheck/" + string(p.name) + "/widgets"
	with := func(change func(*apisv1alpha1.APIExportCheckSpec)) *apisv1alpha1.APIExportCheck {
		check := newCheck()
		change(&check.Spec)
		return check
	}
	costly := widgetSchema("next", "color")
	_ = unstructured.SetNestedSlice(costly.Object, []any{decoded(`
name: v1
served: true
storage: true
schema:
  type: object
  properties: {spec: {type: object, properties: {all: {type: array, items: {type: array, items: {type: string}}}}, x-kubernetes-validations: [{rule: "self.all.all(x, self.all.all(y, x.all(a, y.all(b, a != b))))"}]}}
`).Object}, "spec", "versions")
	for name, c := range map[string]struct {
		who  string
		at   string
		send any
		code int
		text string
	}{
		"a consumer":                  {"carol", at, newCheck(), http.StatusForbidden, "forbidden"},
		"a user who may not list":     {"gus", at, newCheck(), http.StatusForbidden, "forbidden"},
		"no export":                   {"pat", at + "s", newCheck(), http.StatusNotFound, "not found"},
		"a longer path":               {"pat", at + "/clusters", newCheck(), http.StatusNotFound, "the path of this view"},
		"another kind":                {"pat", at, widgetExport("widgets", "v1"), http.StatusBadRequest, "must be an APIExportCheck"},
		"no object":                   {"pat", at, "x", http.StatusBadRequest, "no APIExportCheck"},
		"a schema of another cluster": {"pat", at, with(func(s *apisv1alpha1.APIExportCheckSpec) { s.Schemas = []string{"elsewhere.widgets.example.com"} }), http.StatusBadRequest, "there is no APIResourceSchema"},
		"a path as a name": {"pat", at, with(func(s *apisv1alpha1.APIExportCheckSpec) {
			s.Schemas = []string{"../" + string(other.name) + "/elsewhere.widgets.example.com"}
		}), http.StatusBadRequest, "there is no APIResourceSchema"},
		"another resource":  {"pat", at, newCheck(peopleSchema()), http.StatusBadRequest, "has no resource people.example.com"},
		"two of a resource": {"pat", at, newCheck(widgetSchema("a", "b"), widgetSchema("b", "c")), http.StatusBadRequest, "two schemas"},
		"a costly rule":     {"pat", at, newCheck(costly), http.StatusUnprocessableEntity, "cost"},
		"a forged token":    {"pat", at, with(func(s *apisv1alpha1.APIExportCheckSpec) { s.Continue = "eyJyIjo5OTl9" }), http.StatusBadRequest, "continue is not from"},
		"many schemas":      {"pat", at, with(func(s *apisv1alpha1.APIExportCheckSpec) { s.Schemas = make([]string, 21) }), http.StatusBadRequest, "at most 20"},
	} {
		if code, body := (person{t, p.server, as(c.who).(*user.DefaultInfo)}).post(c.at, c.send); code != c.code || !strings.Contains(body, c.text) || strings.Contains(body, "w000") {
			t.Errorf("%s: %d %s", name, code, body)
		}
	}
	if code, _ := pat.get(at, nil); code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", code)
	}
	check := newCheck(changedWidgets("Namespaced", `{name: v1, served: true, storage: true, schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer, minimum: 2}}}}}}`))
	if breaks, sum := pat.checked(p, check); len(breaks) < 100 || sum.Broken != 103 || len(sum.Causes) != 1 || sum.Causes[0].Objects != 103 || sum.BrokenConsumers[0].Broken != 103 {
		t.Errorf("%d of the broken objects are listed: %+v", len(breaks), sum)
	}
}

// TestAProviderChecksTheCoreGroup shows a check and a rollout of a resource in the core group.
func TestAProviderChecksTheCoreGroup(t *testing.T) {
	t.Parallel()
	p, c := newTenant(t), newTenant(t)
	p.provides("pat")
	gadgets := func(prefix, field string) *unstructured.Unstructured {
		return decoded(`
apiVersion: apis.kcp.io/v1alpha1
kind: APIResourceSchema
metadata: {name: %s.gadgets.core}
spec:
  group: ""
  names: {plural: gadgets, singular: gadget, kind: Gadget, listKind: GadgetList}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer, maximum: 9}, %s: {type: string}}}}}}
`, prefix, field)
	}
	p.create(apiSchemas, gadgets("v1", "color"))
	p.create(apiExports, decoded(`{apiVersion: apis.kcp.io/v1alpha2, kind: APIExport, metadata: {name: widgets}, spec: {resources: [{name: gadgets, group: "", schema: v1.gadgets.core}]}}`))
	c.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	in := c.any.Resource(core("gadgets")).Namespace("default")
	for name, spec := range map[string]string{"red": "{color: red}", "large": "{size: 9}", "plain": "{size: 1}"} {
		must(in.Create(t.Context(), decoded(`{apiVersion: v1, kind: Gadget, metadata: {name: %s}, spec: %s}`, name, spec), metav1.CreateOptions{}))(t)
	}
	next := gadgets("next", "shape")
	versions, _, _ := unstructured.NestedSlice(next.Object, "spec", "versions")
	_ = unstructured.SetNestedField(versions[0].(map[string]any), int64(8), "schema", "properties", "spec", "properties", "size", "maximum")
	_ = unstructured.SetNestedSlice(next.Object, versions, "spec", "versions")
	pat := person{t, p.server, as("pat").(*user.DefaultInfo)}
	breaks, sum := pat.checked(p, newCheck(next))
	if want := []string{"large Invalid spec.size in v1", "red FieldLost spec.color in v1"}; !slices.Equal(breaks, want) || sum.Checked != 3 || sum.Unreadable != 0 {
		t.Errorf("the check has %q and %+v", breaks, sum)
	}
	p.create(apiSchemas, gadgets("both", "shape"))
	p.create(apiRollouts, decoded(`{apiVersion: apis.kcp.io/v1alpha1, kind: APIExportRollout, metadata: {name: new}, spec: {export: widgets, schemas: [both.gadgets.core], maxBroken: 1, rings: [{name: canary, clusters: [%s], pause: 24h}]}}`, c.name))
	o := p.rollout("new", "Paused", 1)
	if broken, _, _ := unstructured.NestedInt64(o.Object, "status", "broken"); broken != 1 {
		t.Errorf("the rollout is %v", o.Object["status"])
	}
	seen := must(must(dynamic.NewForConfig(p.view("pat").config("*")))(t).Resource(core("gadgets")).List(t.Context(), metav1.ListOptions{}))(t)
	if got := listed(seen); got != "large plain red" {
		t.Errorf("during the rollout the view has %q", got)
	}
}
