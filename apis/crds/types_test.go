package crds_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/yaml"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancy "github.com/unforked/kcp/apis/tenancy/v1alpha1"
)

// TestGoTypes takes objects that use every field through the Go types and
// expects them back unchanged.
func TestGoTypes(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{core.AddToScheme, tenancy.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)

	const common = `
  conditions: [{type: Ready, status: "False", severity: Error, reason: Because, message: of this, lastTransitionTime: "2026-01-02T03:04:05Z"}]
  phase: Initializing
  initializers: ["root:universal"]
  terminators: ["root:other"]
`
	for name, text := range map[string]string{
		logicalClusters: `
metadata: {name: cluster}
spec:
  createdBy: {username: alice, uid: "1", groups: [a, b], extra: {k: [v]}}
  directlyDeletable: true
  initializers: ["root:universal", "system:apibindings"]
  terminators: ["root:universal"]
  owner: {apiVersion: tenancy.kcp.io/v1alpha1, resource: workspaces, name: a, namespace: b, cluster: root, uid: u}
status:
  URL: https://host/clusters/abc` + common,
		workspaces: `
metadata: {name: cluster}
spec:
  URL: https://host/clusters/root:a
  cluster: abc
  location: {selector: {matchLabels: {region: eu}, matchExpressions: [{key: a, operator: In, values: [b]}]}}
  type: {name: universal, path: "root:org"}
  mount: {ref: {apiVersion: a/v1, kind: K, name: one, namespace: x}}
status:` + common,
		workspaceTypes: `
metadata: {name: cluster}
spec:
  initializer: true
  initializerPermissions: [{verbs: [get], apiGroups: [""], resources: [secrets], resourceNames: [a]}, {verbs: [get], nonResourceURLs: [/version]}]
  terminator: true
  terminatorPermissions: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"]}]
  extend: {with: [{name: universal, path: root}, {name: other}]}
  additionalWorkspaceLabels: {tier: gold}
  defaultChildWorkspaceType: {name: team, path: "root:org"}
  limitAllowedChildren: {types: [{name: team, path: root}]}
  limitAllowedParents: {none: true}
  defaultAPIBindings: [{export: tenancy.kcp.io, path: root}]
  defaultAPIBindingLifecycle: Maintain
  authenticationConfigurations: [{name: staff}]
status:
  conditions: [{type: Ready, status: "True", lastTransitionTime: "2026-01-02T03:04:05Z"}]
  virtualWorkspaces: [{url: "https://host/services/initializingworkspaces/root:a", type: initializing}]
`,
	} {
		d := load(t, name)
		want := d.object(t, text)
		if refusals := d.refusals(t, nil, want); len(refusals) > 0 {
			t.Errorf("%s: %q", name, refusals)
		}
		raw, err := yaml.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		o, gvk, err := codecs.UniversalDeserializer().Decode(raw, nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if wantGVK := (schema.GroupVersionKind{Group: d.crd.Spec.Group, Version: "v1alpha1", Kind: d.crd.Spec.Names.Kind}); *gvk != wantGVK {
			t.Errorf("decoded as %s, want %s", gvk, wantGVK)
		}
		if !scheme.Recognizes(gvk.GroupVersion().WithKind(d.crd.Spec.Names.ListKind)) {
			t.Errorf("%s is unknown", d.crd.Spec.Names.ListKind)
		}
		got, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o.DeepCopyObject())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
