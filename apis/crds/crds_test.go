package crds_test

import (
	"encoding/json"
	"fmt"
	"maps"
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
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/unforked/kcp/apis/crds"
)

// A definition is a CustomResourceDefinition as a server would serve it.
type definition struct {
	crd     *apiextensions.CustomResourceDefinition
	schema  *structural.Structural
	columns []apiextensions.CustomResourceColumnDefinition
	status  bool

	openAPI validation.SchemaValidator
	rules   *cel.Validator
}

// load takes the way that a definition takes when it is sent to a server, and
// fails the test where the server would refuse it.
func load(t *testing.T, name string) definition {
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
	v1.Status.StoredVersions = []string{"v1alpha1"} // as the registry does on create
	d := definition{crd: &apiextensions.CustomResourceDefinition{}}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&v1, d.crd, nil); err != nil {
		t.Fatal(err)
	}
	if errs := crdvalidation.ValidateCustomResourceDefinition(t.Context(), d.crd); len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}

	version, err := apiextensions.GetSchemaForVersion(d.crd, "v1alpha1")
	if err != nil {
		t.Fatal(err)
	}
	if d.schema, err = structural.NewStructural(version.OpenAPIV3Schema); err != nil {
		t.Fatal(err)
	}
	if errs := structural.ValidateStructural(nil, d.schema); len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	if d.openAPI, _, err = validation.NewSchemaValidator(version.OpenAPIV3Schema); err != nil {
		t.Fatal(err)
	}
	if d.rules = cel.NewValidator(d.schema, true, celconfig.PerCallLimit); d.rules == nil {
		t.Fatal("no rules")
	}
	if d.columns, err = apiextensions.GetColumnsForVersion(d.crd, "v1alpha1"); err != nil {
		t.Fatal(err)
	}
	sub, err := apiextensions.GetSubresourcesForVersion(d.crd, "v1alpha1")
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
	var o map[string]any
	if err := yaml.Unmarshal([]byte(text), &o); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	o["apiVersion"] = d.crd.Spec.Group + "/v1alpha1"
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
	ruled, _ := d.rules.Validate(t.Context(), nil, d.schema, next, oldValue, celconfig.RuntimeCELCostBudget)
	var lines []string
	for _, e := range append(errs, ruled...) {
		lines = append(lines, e.Error())
	}
	return lines
}

func TestNames(t *testing.T) {
	want := []string{"logicalclusters.core.kcp.io", "workspaceauthenticationconfigurations.tenancy.kcp.io", "workspaces.tenancy.kcp.io", "workspacetypes.tenancy.kcp.io"}
	if diff := cmp.Diff(want, crds.Names()); diff != "" {
		t.Error(diff)
	}
	for _, name := range crds.Names() {
		if d := load(t, name); d.crd.Name != name {
			t.Errorf("%q is the definition of %q", name, d.crd.Name)
		}
	}
	for _, name := range []string{"", "workspaces", "workspaces.core.kcp.io", "../crds.tenancy.kcp.io"} {
		if b, err := crds.YAML(name); err == nil || !strings.Contains(err.Error(), "workspaces.tenancy.kcp.io") {
			t.Errorf("YAML(%q) = %q, %v; want an error that tells which there are", name, b, err)
		}
	}
}

// conditionFields are the fields of each item of a list of conditions.
const conditionFields = `
status.conditions: array
status.conditions[]: object required=[lastTransitionTime status type]
status.conditions[].lastTransitionTime: string(date-time)
status.conditions[].message: string
status.conditions[].reason: string
status.conditions[].severity: string
status.conditions[].status: string
status.conditions[].type: string`

const initializerPattern = `pattern=^(([a-z0-9]([-a-z0-9]*[a-z0-9])?:)+[a-z0-9][-a-z0-9]*[a-z0-9]|system:.+)$`

const phase = `status.phase: string default="Scheduling" enum=[Scheduling Initializing Ready Unavailable Inactive Terminating Deleting]`

// TestWireFormat spells out what clients depend on, so that no change of a Go
// type changes it unnoticed.
func TestWireFormat(t *testing.T) {
	for name, want := range map[string]string{
		"logicalclusters.core.kcp.io": `
Cluster logicalclusters logicalcluster [] LogicalCluster LogicalClusterList [kcp] status=true
column Phase=.status.phase
column URL=.status.URL
column Age=.metadata.creationTimestamp
spec: object default={}
spec.createdBy: object
spec.createdBy.extra: object
spec.createdBy.extra{}: array
spec.createdBy.extra{}[]: string
spec.createdBy.groups: array
spec.createdBy.groups[]: string
spec.createdBy.uid: string
spec.createdBy.username: string
spec.directlyDeletable: boolean default=false
spec.initializers: array
spec.initializers[]: string ` + initializerPattern + `
spec.owner: object required=[apiVersion cluster name resource uid]
spec.owner.apiVersion: string pattern=^([^/]+/)?[^/]+$
spec.owner.cluster: string minLength=1
spec.owner.name: string minLength=1
spec.owner.namespace: string
spec.owner.resource: string minLength=1
spec.owner.uid: string
spec.terminators: array
spec.terminators[]: string ` + initializerPattern + `
status: object default={}
status.URL: string` + conditionFields + `
status.initializers: array
status.initializers[]: string ` + initializerPattern + `
` + phase + `
status.terminators: array
status.terminators[]: string ` + initializerPattern + `
`,
		"workspaceauthenticationconfigurations.tenancy.kcp.io": `
Cluster workspaceauthenticationconfigurations workspaceauthenticationconfiguration [] WorkspaceAuthenticationConfiguration WorkspaceAuthenticationConfigurationList [kcp] status=false
column Age=.metadata.creationTimestamp
required=[spec]
spec: object required=[jwt]
spec.jwt: array
spec.jwt[]: object required=[claimMappings issuer]
spec.jwt[].claimMappings: object required=[username]
spec.jwt[].claimMappings.extra: array
spec.jwt[].claimMappings.extra[]: object required=[key valueExpression]
spec.jwt[].claimMappings.extra[].key: string
spec.jwt[].claimMappings.extra[].valueExpression: string
spec.jwt[].claimMappings.groups: object
spec.jwt[].claimMappings.groups.claim: string minLength=1
spec.jwt[].claimMappings.groups.expression: string minLength=1
spec.jwt[].claimMappings.groups.prefix: string
spec.jwt[].claimMappings.uid: object
spec.jwt[].claimMappings.uid.claim: string minLength=1
spec.jwt[].claimMappings.uid.expression: string minLength=1
spec.jwt[].claimMappings.username: object
spec.jwt[].claimMappings.username.claim: string minLength=1
spec.jwt[].claimMappings.username.expression: string minLength=1
spec.jwt[].claimMappings.username.prefix: string
spec.jwt[].claimValidationRules: array
spec.jwt[].claimValidationRules[]: object
spec.jwt[].claimValidationRules[].claim: string minLength=1
spec.jwt[].claimValidationRules[].expression: string minLength=1
spec.jwt[].claimValidationRules[].message: string minLength=1
spec.jwt[].claimValidationRules[].requiredValue: string minLength=1
spec.jwt[].issuer: object required=[url]
spec.jwt[].issuer.audienceMatchPolicy: string
spec.jwt[].issuer.audiences: array
spec.jwt[].issuer.audiences[]: string
spec.jwt[].issuer.certificateAuthority: string
spec.jwt[].issuer.discoveryURL: string
spec.jwt[].issuer.url: string
spec.jwt[].userValidationRules: array
spec.jwt[].userValidationRules[]: object required=[expression message]
spec.jwt[].userValidationRules[].expression: string
spec.jwt[].userValidationRules[].message: string
`,
		"workspaces.tenancy.kcp.io": `
Cluster workspaces workspace [ws] Workspace WorkspaceList [kcp] status=true
column Type=.spec.type.name
column Region=.metadata.labels['region']
column Phase=.status.phase
column URL=.spec.URL
column Age=.metadata.creationTimestamp
required=[spec]
spec: object default={}
spec.URL: string
spec.cluster: string
spec.location: object
spec.location.selector: object map=atomic
spec.location.selector.matchExpressions: array list=atomic
spec.location.selector.matchExpressions[]: object required=[key operator]
spec.location.selector.matchExpressions[].key: string
spec.location.selector.matchExpressions[].operator: string
spec.location.selector.matchExpressions[].values: array list=atomic
spec.location.selector.matchExpressions[].values[]: string
spec.location.selector.matchLabels: object
spec.location.selector.matchLabels{}: string
spec.mount: object required=[ref]
spec.mount.ref: object required=[apiVersion kind name]
spec.mount.ref.apiVersion: string
spec.mount.ref.kind: string
spec.mount.ref.name: string
spec.mount.ref.namespace: string
spec.type: object required=[name]
spec.type.name: string pattern=^[a-z][a-z0-9-]{0,62}
spec.type.path: string pattern=^[a-z0-9]([-a-z0-9]*[a-z0-9])?(:[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$
status: object default={}` + conditionFields + `
status.initializers: array
status.initializers[]: string ` + initializerPattern + `
` + phase + `
status.terminators: array
status.terminators[]: string ` + initializerPattern + `
`,
		"workspacetypes.tenancy.kcp.io": `
Cluster workspacetypes workspacetype [] WorkspaceType WorkspaceTypeList [kcp] status=true
column Age=.metadata.creationTimestamp
spec: object
spec.additionalWorkspaceLabels: object
spec.additionalWorkspaceLabels{}: string
spec.authenticationConfigurations: array
spec.authenticationConfigurations[]: object required=[name]
spec.authenticationConfigurations[].name: string
spec.defaultAPIBindingLifecycle: string enum=[InitializeOnly Maintain]
spec.defaultAPIBindings: array
spec.defaultAPIBindings[]: object required=[export]
spec.defaultAPIBindings[].export: string
spec.defaultAPIBindings[].path: string pattern=^[a-z0-9]([-a-z0-9]*[a-z0-9])?(:[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$
spec.defaultChildWorkspaceType: object default={"name":"universal","path":"root"} required=[name]
spec.defaultChildWorkspaceType.name: string pattern=^[a-z][a-z0-9-]{0,62}
spec.defaultChildWorkspaceType.path: string pattern=^[a-z0-9]([-a-z0-9]*[a-z0-9])?(:[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$
spec.extend: object
spec.extend.with: array
spec.extend.with[]: object required=[name]
spec.extend.with[].name: string pattern=^[a-z][a-z0-9-]{0,62}
spec.extend.with[].path: string pattern=^[a-z0-9]([-a-z0-9]*[a-z0-9])?(:[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$
spec.initializer: boolean
spec.initializerPermissions: array
spec.initializerPermissions[]: object required=[verbs]
spec.initializerPermissions[].apiGroups: array list=atomic
spec.initializerPermissions[].apiGroups[]: string
spec.initializerPermissions[].nonResourceURLs: array list=atomic
spec.initializerPermissions[].nonResourceURLs[]: string
spec.initializerPermissions[].resourceNames: array list=atomic
spec.initializerPermissions[].resourceNames[]: string
spec.initializerPermissions[].resources: array list=atomic
spec.initializerPermissions[].resources[]: string
spec.initializerPermissions[].verbs: array list=atomic
spec.initializerPermissions[].verbs[]: string
spec.limitAllowedChildren: object
spec.limitAllowedChildren.none: boolean
spec.limitAllowedChildren.types: array
spec.limitAllowedChildren.types[]: object required=[name]
spec.limitAllowedChildren.types[].name: string pattern=^[a-z][a-z0-9-]{0,62}
spec.limitAllowedChildren.types[].path: string pattern=^[a-z0-9]([-a-z0-9]*[a-z0-9])?(:[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$
spec.limitAllowedParents: object
spec.limitAllowedParents.none: boolean
spec.limitAllowedParents.types: array
spec.limitAllowedParents.types[]: object required=[name]
spec.limitAllowedParents.types[].name: string pattern=^[a-z][a-z0-9-]{0,62}
spec.limitAllowedParents.types[].path: string pattern=^[a-z0-9]([-a-z0-9]*[a-z0-9])?(:[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$
spec.terminator: boolean
spec.terminatorPermissions: array
spec.terminatorPermissions[]: object required=[verbs]
spec.terminatorPermissions[].apiGroups: array list=atomic
spec.terminatorPermissions[].apiGroups[]: string
spec.terminatorPermissions[].nonResourceURLs: array list=atomic
spec.terminatorPermissions[].nonResourceURLs[]: string
spec.terminatorPermissions[].resourceNames: array list=atomic
spec.terminatorPermissions[].resourceNames[]: string
spec.terminatorPermissions[].resources: array list=atomic
spec.terminatorPermissions[].resources[]: string
spec.terminatorPermissions[].verbs: array list=atomic
spec.terminatorPermissions[].verbs[]: string
status: object` + conditionFields + `
status.virtualWorkspaces: array
status.virtualWorkspaces[]: object required=[url]
status.virtualWorkspaces[].type: string enum=[initializing terminating]
status.virtualWorkspaces[].url: string minLength=1
`,
	} {
		t.Run(name, func(t *testing.T) {
			d := load(t, name)
			n := d.crd.Spec.Names
			got := []string{"", fmt.Sprint(d.crd.Spec.Scope, " ", n.Plural, " ", n.Singular, " ", n.ShortNames, " ",
				n.Kind, " ", n.ListKind, " ", n.Categories, " status=", d.status)}
			for _, c := range d.columns {
				got = append(got, "column "+c.Name+"="+c.JSONPath)
			}
			if r := d.schema.ValueValidation.Required; len(r) > 0 {
				got = append(got, fmt.Sprintf("required=%v", r))
			}
			got = append(got, fields("spec", d.schema.Properties["spec"])...)
			if status, ok := d.schema.Properties["status"]; ok {
				got = append(got, fields("status", status)...)
			}
			if diff := cmp.Diff(want, strings.Join(got, "\n")+"\n"); diff != "" {
				t.Error(diff)
			}
		})
	}
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
