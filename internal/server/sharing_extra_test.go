package server_test

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// extraOf returns the annotations that a binding has from its export.
func extraOf(o *unstructured.Unstructured) string {
	all := map[string]string{}
	for key, value := range o.GetAnnotations() {
		if of, ok := strings.CutPrefix(key, "extra.apis.kcp.io/"); ok {
			all[of] = value
		}
	}
	return fmt.Sprint(all)
}

// TestBindingsHaveTheAnnotationsOfTheirExport shows that bindings get, keep and lose the annotations
// extra.apis.kcp.io/… of their export, and that consumers cannot change them.
func TestBindingsHaveTheAnnotationsOfTheirExport(t *testing.T) {
	t.Parallel()
	p, early, late := exporter(t), newTenant(t), newTenant(t)
	annotate := func(c *tenant, r schema.GroupVersionResource, patch string) error {
		_, err := c.any.Resource(r).Patch(t.Context(), "widgets", types.MergePatchType, []byte(`{"metadata":{"annotations":`+patch+`}}`), metav1.PatchOptions{})
		return err
	}
	is := func(c *tenant, want string) {
		t.Helper()
		c.await(apiBindings, "", "widgets", func(o *unstructured.Unstructured) bool { return extraOf(o) == want })
	}
	early.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	if err := annotate(p, apiExports, `{"extra.apis.kcp.io/team":"blue","extra.apis.kcp.io/tier":"gold","example.com/other":"x"}`); err != nil {
		t.Fatal(err)
	}
	is(early, "map[team:blue tier:gold]")
	if got := extraOf(late.create(apiBindings, bindingTo("widgets", p.name, "widgets"))); got != "map[team:blue tier:gold]" {
		t.Errorf("a new binding has %s", got)
	}
	if err := annotate(late, apiBindings, `{"extra.apis.kcp.io/team":"forged","extra.apis.kcp.io/own":"x","example.com/own":"y"}`); err != nil {
		t.Fatal(err)
	}
	is(late, "map[team:blue tier:gold]")
	if b := must(late.any.Resource(apiBindings).Get(t.Context(), "widgets", metav1.GetOptions{}))(t); b.GetAnnotations()["example.com/own"] != "y" {
		t.Errorf("another annotation is lost: %v", b.GetAnnotations())
	}
	if err := annotate(p, apiExports, `{"extra.apis.kcp.io/tier":null}`); err != nil {
		t.Fatal(err)
	}
	is(early, "map[team:blue]")
	is(late, "map[team:blue]")
	if err := annotate(p, apiExports, `{"extra.apis.kcp.io/large":"`+strings.Repeat("x", 4<<10)+`"}`); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "all APIBindings to this APIExport get a copy") {
		t.Errorf("large annotations: %v", err)
	}
}

// TestDefaultBindingsHaveTheAnnotationsOfTheirExport shows that the default bindings of a new workspace have the annotations
// when its creation returns.
func TestDefaultBindingsHaveTheAnnotationsOfTheirExport(t *testing.T) {
	t.Parallel()
	p, owner := exporter(t), newTenant(t)
	owner.create(workspaceTypes, typeBinding("shop", "Maintain", p.name))
	for _, want := range []string{"map[]", "map[team:blue]"} {
		name := fmt.Sprint("w", len(want))
		in := owner.inside(owner.create(workspaces, of(name, "", "shop")))
		all := must(in.any.Resource(apiBindings).List(t.Context(), metav1.ListOptions{}))(t)
		for _, b := range all.Items {
			if text(&b, "spec", "reference", "export", "name") == "widgets" && extraOf(&b) != want {
				t.Errorf("the default binding %s has %s, want %s", b.GetName(), extraOf(&b), want)
			}
		}
		p.merge(apiExports, "", "widgets", `{"metadata":{"annotations":{"extra.apis.kcp.io/team":"blue"}}}`)
	}
}

// TestMistakesAreNamedInTheirField shows that errors name a field of the object that was written, and its mistake.
func TestMistakesAreNamedInTheirField(t *testing.T) {
	t.Parallel()
	p := newTenant(t)
	version := func(of string) string {
		return `{apiVersion: apis.kcp.io/v1alpha1, kind: APIResourceSchema, metadata: {name: v1.widgets.example.com}, spec: {group: example.com, scope: Cluster,
			names: {plural: widgets, kind: Widget}, versions: [{name: v1, served: true, ` + of + `}]}}`
	}
	for name, c := range map[string]struct {
		r             schema.GroupVersionResource
		o, want, lack string
	}{
		"no spec": {apiSchemas, `{apiVersion: apis.kcp.io/v1alpha1, kind: APIResourceSchema, metadata: {name: v1.widgets.example.com}}`,
			"spec: Required value: set it to the group, names, scope and versions", "must be v1"},
		"no storage version":     {apiSchemas, version("storage: false, schema: {type: object}"), "exactly one version marked as storage", "status.storedVersions"},
		"a schema of no type":    {apiSchemas, version("storage: true, schema: {openAPIV3Schema: {type: object}}"), "spec.versions[0].schema.type: Required value", "openAPIV3Schema"},
		"a field to select by":   {apiSchemas, version("storage: true, schema: {type: object}, selectableFields: [{jsonPath: .spec.x}]"), "spec.versions[0].selectableFields[0].jsonPath", "spec.selectable"},
		"the core group":         {apiSchemas, strings.ReplaceAll(version("storage: true, schema: {type: object}"), "example.com", "core"), `spec.group: Invalid value: "core": set it to ""`, "must be v1"},
		"the core group, export": {apiExports, `{apiVersion: apis.kcp.io/v1alpha2, kind: APIExport, metadata: {name: x}, spec: {resources: [{group: core, name: pods, schema: v1.pods.core}]}}`, `spec.resources[0].group: set it to ""`, "must end in"},
		"the core group, claim":  {apiExports, `{apiVersion: apis.kcp.io/v1alpha2, kind: APIExport, metadata: {name: x}, spec: {permissionClaims: [{group: core, resource: secrets, verbs: [get]}]}}`, `spec.permissionClaims[0].group: set it to ""`, "identityHash"},
		"a selector": {schema.GroupVersionResource{Group: "topology.kcp.io", Version: "v1alpha1", Resource: "partitions"},
			`{apiVersion: topology.kcp.io/v1alpha1, kind: Partition, metadata: {name: x}, spec: {selector: {matchExpressions: [{key: a, operator: Near}]}}}`, `"Near" is not a valid label selector operator`, "<error>"},
	} {
		_, err := p.any.Resource(c.r).Create(t.Context(), decoded("%s", c.o), metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), c.lack) {
			t.Errorf("%s: %v, want %q without %q", name, err, c.want, c.lack)
		}
	}
	half := p.create(apiExports, decoded(`{apiVersion: apis.kcp.io/v1alpha2, kind: APIExport, metadata: {name: half}, spec: {identity: {secretRef: {name: x}}}}`))
	if got := fmt.Sprint(half.Object["status"]); !strings.Contains(got, "spec.identity.secretRef has no name or no namespace") {
		t.Errorf("a secret without a namespace: %s", got)
	}
}
