package v1alpha1_test

import (
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/unforked/kcp/apis/apis/v1alpha1"
)

func TestParseSchemaName(t *testing.T) {
	resource := func(resource, group string) schema.GroupResource {
		return schema.GroupResource{Resource: resource, Group: group}
	}
	for name, want := range map[string]v1alpha1.SchemaName{
		"v1.widgets.example.org":      {Prefix: "v1", GroupResource: resource("widgets", "example.org")},
		"today-1.widgets.example.org": {Prefix: "today-1", GroupResource: resource("widgets", "example.org")},
		"a.configmaps.core":           {Prefix: "a", GroupResource: resource("configmaps", "")},
	} {
		got, err := v1alpha1.ParseSchemaName(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		expect(t, want, got)
		expect(t, name, got.String())
		expect(t, name[len(want.Prefix)+1:], got.DefinitionName())
	}
	for name, want := range map[string]string{
		"":                         "must be <prefix>.<plural name>.<group>",
		"widgets":                  "must be <prefix>.<plural name>.<group>",
		"widgets.core":             "must be <prefix>.<plural name>.<group>",
		".widgets.example.org":     `the prefix ""`,
		"1.widgets.example.org":    `the prefix "1"`,
		"v-.widgets.example.org":   `the prefix "v-"`,
		"V1.widgets.example.org":   `the prefix "V1"`,
		"v1..example.org":          `the plural name ""`,
		"v1.wid_gets.example.org":  `the plural name "wid_gets"`,
		"v1.widgets.":              "must be <prefix>.<plural name>.<group>",
		"v1.widgets.example..org":  `the group "example..org"`,
		"v1.widgets.example.org\n": `the group "example.org\n"`,
	} {
		_, err := v1alpha1.ParseSchemaName(name)
		if err == nil {
			t.Errorf("%q is accepted", name)
		}
		expectError(t, err, want)
	}
}

func FuzzSchemaName(f *testing.F) {
	f.Add("v1.widgets.example.org")
	f.Add("v1.secrets.core")
	f.Add("v1.secrets.core.core")
	f.Fuzz(func(t *testing.T, name string) {
		n, err := v1alpha1.ParseSchemaName(name)
		if err == nil && n.String() != name {
			t.Errorf("%q is parsed as %q", name, n)
		}
	})
}

const widgets = `
metadata:
  name: widgets.example.org
  annotations: {api-approved.kubernetes.io: "https://example.org", other: dropped}
spec:
  group: example.org
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList, shortNames: [w], categories: [all]}
  conversion:
    strategy: Webhook
    webhook: {clientConfig: {url: "https://example.org/convert", caBundle: YQ==}, conversionReviewVersions: [v1]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}}
    additionalPrinterColumns: [{name: Color, type: string, jsonPath: .spec.color, priority: 1}]
    selectableFields: [{jsonPath: .spec.color}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              color: {type: string, default: red, enum: [red, blue], x-kubernetes-validations: [{rule: "self == oldSelf"}]}
              replicas: {type: integer, minimum: 0}
          status:
            type: object
            x-kubernetes-preserve-unknown-fields: true
  - name: v1beta1
    served: false
    storage: false
    deprecated: true
    deprecationWarning: gone
    schema: {openAPIV3Schema: {type: object}}
`

func definition(t *testing.T, text string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict([]byte(text), crd); err != nil {
		t.Fatal(err)
	}
	return crd
}

func TestDefinitionRoundTrip(t *testing.T) {
	in := definition(t, widgets)
	before := in.DeepCopy()
	s, err := v1alpha1.FromCustomResourceDefinition(in, "today")
	if err != nil {
		t.Fatal(err)
	}
	expect(t, before, in)
	s = sent(t, s)
	expect(t, "today.widgets.example.org", s.Name)
	expect(t, "APIResourceSchema", s.Kind)
	expect(t, "apis.kcp.io/v1alpha1", s.APIVersion)
	got, err := s.CustomResourceDefinition()
	if err != nil {
		t.Fatal(err)
	}
	delete(before.Annotations, "other")
	expect(t, before, got)
}

// The definition of a resource of the core group has "core" in its name.
func TestCoreDefinition(t *testing.T) {
	in := definition(t, `
metadata: {name: dogs.core}
spec:
  group: ""
  scope: Cluster
  names: {plural: dogs, kind: Dog}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
`)
	s, err := v1alpha1.FromCustomResourceDefinition(in, "v1")
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "v1.dogs.core", s.Name)
	expect(t, "", s.Spec.Group)
	expect(t, "dog DogList", s.Spec.Names.Singular+" "+s.Spec.Names.ListKind)
	if s.Spec.Conversion != nil {
		t.Errorf("one version has a conversion: %v", s.Spec.Conversion)
	}
	got, err := s.CustomResourceDefinition()
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "dogs.core", got.Name)
	if got.Spec.Versions[0].Subresources != nil {
		t.Errorf("the definition has subresources: %v", got.Spec.Versions[0].Subresources)
	}
}

// A server accepts the definition.
func TestDefinitionIsValid(t *testing.T) {
	s, err := v1alpha1.FromCustomResourceDefinition(definition(t, widgets), "today")
	if err != nil {
		t.Fatal(err)
	}
	crd, err := s.CustomResourceDefinition()
	if err != nil {
		t.Fatal(err)
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinition(crd)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
	crd.Spec.Conversion.Webhook.ClientConfig.CABundle = nil // is none
	crd.Status.StoredVersions = []string{"v1"}
	var internal apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, &internal, nil); err != nil {
		t.Fatal(err)
	}
	if errs := crdvalidation.ValidateCustomResourceDefinition(t.Context(), &internal); len(errs) > 0 {
		t.Error(errs.ToAggregate())
	}
}

func TestTwoVersionsHaveAConversion(t *testing.T) {
	in := definition(t, widgets)
	in.Spec.Conversion = nil
	s, err := v1alpha1.FromCustomResourceDefinition(in, "today")
	if err != nil {
		t.Fatal(err)
	}
	expect(t, &v1alpha1.ResourceConversion{Strategy: apiextensionsv1.NoneConverter}, s.Spec.Conversion)
}

func TestDefinitionErrors(t *testing.T) {
	for _, c := range []struct {
		name, prefix string
		change       func(*apiextensionsv1.CustomResourceDefinition)
		want         string
	}{
		{"prefix", "1", func(*apiextensionsv1.CustomResourceDefinition) {}, `"widgets.example.org": the prefix "1"`},
		{"no schema", "v1", func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Spec.Versions[1].Schema = nil }, `version "v1beta1" has no schema`},
		{"an empty schema", "v1", func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Spec.Versions[1].Schema.OpenAPIV3Schema = nil
		}, `version "v1beta1" has no schema`},
		{"a Service", "v1", func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Spec.Conversion.Webhook.ClientConfig = &apiextensionsv1.WebhookClientConfig{Service: &apiextensionsv1.ServiceReference{Name: "a"}}
		}, "the conversion webhook must have a URL, not a Service"},
	} {
		t.Run(c.name, func(t *testing.T) {
			crd := definition(t, widgets)
			c.change(crd)
			_, err := v1alpha1.FromCustomResourceDefinition(crd, c.prefix)
			expectError(t, err, c.want)
		})
	}
	for text, want := range map[string]string{
		``:                `APIResourceSchema "today.widgets.example.org": version "v1" has no schema`,
		`{"type": "obje`:  `schema of version "v1"`,
		`{"type": ["a"]}`: `schema of version "v1"`,
	} {
		s, err := v1alpha1.FromCustomResourceDefinition(definition(t, widgets), "today")
		if err != nil {
			t.Fatal(err)
		}
		s.Spec.Versions[0].Schema.Raw = []byte(text)
		_, err = s.CustomResourceDefinition()
		expectError(t, err, want)
	}
}
