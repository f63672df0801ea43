package crds_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/unforked/kcp/apis/crds"
)

// A definition is one version of a CustomResourceDefinition as a server would serve it.
type definition struct {
	crd     *apiextensions.CustomResourceDefinition
	schema  *structural.Structural
	columns []apiextensions.CustomResourceColumnDefinition
	version string
	storage bool // of this version
	status  bool

	openAPI validation.SchemaValidator
	rules   *cel.Validator
}

// load takes the way that a definition takes when it is sent to a server, and
// fails the test where the server would refuse it.
func load(t *testing.T, name, version string) definition {
	t.Helper()
	raw, err := crds.YAML(name)
	if err != nil {
		t.Fatal(err)
	}
	var v1 apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(raw, &v1); err != nil {
		t.Fatal(err)
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinition(&v1)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&v1.Spec)
	d := definition{crd: &apiextensions.CustomResourceDefinition{}, version: version}
	for _, v := range v1.Spec.Versions {
		if v.Storage {
			v1.Status.StoredVersions = []string{v.Name} // as the registry does on create
			d.storage = v.Name == version
		}
	}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&v1, d.crd, nil); err != nil {
		t.Fatal(err)
	}
	if errs := crdvalidation.ValidateCustomResourceDefinition(t.Context(), d.crd); len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}

	validated, err := apiextensions.GetSchemaForVersion(d.crd, version)
	if err != nil {
		t.Fatal(err)
	}
	if d.schema, err = structural.NewStructural(validated.OpenAPIV3Schema); err != nil {
		t.Fatal(err)
	}
	if errs := structural.ValidateStructural(nil, d.schema); len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	if d.openAPI, _, err = validation.NewSchemaValidator(validated.OpenAPIV3Schema); err != nil {
		t.Fatal(err)
	}
	d.rules = cel.NewValidator(d.schema, true, celconfig.PerCallLimit) // nil if there are no rules
	if d.columns, err = apiextensions.GetColumnsForVersion(d.crd, version); err != nil {
		t.Fatal(err)
	}
	sub, err := apiextensions.GetSubresourcesForVersion(d.crd, version)
	if err != nil {
		t.Fatal(err)
	}
	d.status = sub != nil && sub.Status != nil
	return d
}

// object returns the object that text describes, in YAML, with the defaults of
// d filled in.
func (d definition) object(t *testing.T, text string) map[string]any {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	var o map[string]any
	if err := utiljson.Unmarshal(raw, &o); err != nil { // with whole numbers, as in a server
		t.Fatalf("%v in %s", err, text)
	}
	o["apiVersion"] = d.crd.Spec.Group + "/" + d.version
	o["kind"] = d.crd.Spec.Names.Kind
	defaulting.Default(o, d.schema)
	return o
}

// refusals returns what a server answers when old becomes next, one line for
// each cause. There is no old when an object is created.
func (d definition) refusals(t *testing.T, old, next map[string]any) []string {
	t.Helper()
	var oldValue any
	errs := validation.ValidateCustomResource(nil, next, d.openAPI)
	if old != nil {
		oldValue = old
		errs = validation.ValidateCustomResourceUpdate(nil, next, old, d.openAPI)
	}
	if d.rules != nil {
		ruled, _ := d.rules.Validate(t.Context(), nil, d.schema, next, oldValue, celconfig.RuntimeCELCostBudget)
		errs = append(errs, ruled...)
	}
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, d.schema, next)...)
	var lines []string
	for _, e := range errs {
		lines = append(lines, e.Error())
	}
	return lines
}

func TestNames(t *testing.T) {
	want := []string{"apibindings.apis.kcp.io", "apiconversions.apis.kcp.io", "apiexportendpointslices.apis.kcp.io", "apiexportrollouts.apis.kcp.io", "apiexports.apis.kcp.io", "apiresourceschemas.apis.kcp.io",
		"clustercachedresourceendpointslices.cache.kcp.io", "clustercachedresources.cache.kcp.io", "logicalclusters.core.kcp.io", "partitions.topology.kcp.io", "partitionsets.topology.kcp.io", "shards.core.kcp.io",
		"workspaceauthenticationconfigurations.tenancy.kcp.io", "workspaces.tenancy.kcp.io", "workspacetypes.tenancy.kcp.io"}
	if diff := cmp.Diff(want, crds.Names()); diff != "" {
		t.Error(diff)
	}
	// Only workspaces that bind them have these.
	want = append(want, "assignments.workload.kcp.io", "locations.scheduling.kcp.io", "placements.scheduling.kcp.io", "resourceprofiles.workload.kcp.io", "synctargets.workload.kcp.io", "targetstatuses.workload.kcp.io")
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Sorted(slices.Values(crds.All()))); diff != "" {
		t.Error(diff)
	}
	for _, name := range crds.All() {
		if d := load(t, name, "v1alpha1"); d.crd.Name != name {
			t.Errorf("%q is the definition of %q", name, d.crd.Name)
		}
	}
	for _, name := range []string{"", "workspaces", "workspaces.core.kcp.io", "../crds.tenancy.kcp.io"} {
		if b, err := crds.YAML(name); err == nil || !strings.Contains(err.Error(), "workspaces.tenancy.kcp.io") {
			t.Errorf("YAML(%q) = %q, %v; want an error that tells which there are", name, b, err)
		}
	}
}

// TestWireFormat compares each definition with a file that spells out what clients depend
// on, so that no change of a Go type changes it unnoticed.
func TestWireFormat(t *testing.T) {
	for _, name := range crds.All() {
		for _, version := range load(t, name, "v1alpha1").crd.Spec.Versions {
			t.Run(name+" "+version.Name, func(t *testing.T) {
				want, err := os.ReadFile("testdata/" + name + "_" + version.Name + ".txt")
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(want), wire(load(t, name, version.Name))); diff != "" {
					t.Error(diff)
				}
			})
		}
	}
}

// wire describes the version of d, one line for each column and field.
func wire(d definition) string {
	n := d.crd.Spec.Names
	lines := []string{fmt.Sprint(d.crd.Spec.Scope, " ", n.Plural, " ", n.Singular, " ", n.ShortNames, " ",
		n.Kind, " ", n.ListKind, " ", n.Categories, " status=", d.status, " storage=", d.storage)}
	for _, c := range d.columns {
		lines = append(lines, "column "+c.Name+"="+c.JSONPath)
	}
	if r := d.schema.ValueValidation.Required; len(r) > 0 {
		lines = append(lines, fmt.Sprintf("required=%v", r))
	}
	for _, part := range []string{"spec", "status"} {
		if s, ok := d.schema.Properties[part]; ok {
			lines = append(lines, fields(part, s)...)
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// fields describes s and everything below it, one line for each field. It
// marks fields that kubectl explain would have nothing to say about.
func fields(path string, s structural.Structural) []string {
	line := path + ": " + s.Type
	note := func(set bool, format string, a ...any) {
		if set {
			line += fmt.Sprintf(format, a...)
		}
	}
	v := s.ValueValidation
	if v == nil {
		v = &structural.ValueValidation{}
	}
	note(v.Format != "", "(%s)", v.Format)
	if s.Default.Object != nil {
		text, _ := json.Marshal(s.Default.Object)
		note(true, " default=%s", text)
	}
	note(s.Nullable, " nullable")
	note(s.XPreserveUnknownFields, " unpruned")
	note(s.XIntOrString, " intOrString")
	note(v.Pattern != "", " pattern=%s", v.Pattern)
	note(v.MinLength != nil, " minLength=%d", ptr.Deref(v.MinLength, 0))
	note(v.MaxLength != nil, " maxLength=%d", ptr.Deref(v.MaxLength, 0))
	note(v.MinItems != nil, " minItems=%d", ptr.Deref(v.MinItems, 0))
	note(v.MaxItems != nil, " maxItems=%d", ptr.Deref(v.MaxItems, 0))
	note(v.MaxProperties != nil, " maxProperties=%d", ptr.Deref(v.MaxProperties, 0))
	note(len(v.Enum) > 0, " enum=%v", words(v.Enum))
	note(len(v.Required) > 0, " required=%v", v.Required)
	note(s.XListType != nil, " list=%s%v", ptr.Deref(s.XListType, ""), strings.Join(s.XListMapKeys, ","))
	note(s.XMapType != nil, " map=%s", ptr.Deref(s.XMapType, ""))
	note(s.Description == "" && !strings.HasSuffix(path, "]") && !strings.HasSuffix(path, "}"), " UNDOCUMENTED")

	lines := []string{line}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		lines = append(lines, fields(path+"."+name, s.Properties[name])...)
	}
	if s.Items != nil {
		lines = append(lines, fields(path+"[]", *s.Items)...)
	}
	if a := s.AdditionalProperties; a != nil && a.Structural != nil {
		lines = append(lines, fields(path+"{}", *a.Structural)...)
	}
	return lines
}

func words(enum []structural.JSON) (w []any) {
	for _, e := range enum {
		w = append(w, e.Object)
	}
	return w
}
