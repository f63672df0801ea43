package server_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// labelled makes an old client a manager: it sets a label in its version.
func labelled(t *testing.T, r dynamic.ResourceInterface, name string) {
	t.Helper()
	must(r.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"labels":{"old":"client"}}}`), metav1.PatchOptions{FieldManager: "old"}))(t)
}

// applies applies an object, and checks that nothing of the merge remains in it.
func applies(t *testing.T, r dynamic.ResourceInterface, o *unstructured.Unstructured) {
	t.Helper()
	for _, dry := range [][]string{{metav1.DryRunAll}, nil} {
		applied := must(r.Apply(t.Context(), o.GetName(), o, metav1.ApplyOptions{FieldManager: "of-" + o.GetAPIVersion()[len(o.GetAPIVersion())-2:], Force: true, DryRun: dry}))(t)
		for key := range applied.GetAnnotations() {
			if strings.HasPrefix(key, "merge.") {
				t.Errorf("%s in %s, dry run %v: the annotation %s of a merge remains", o.GetKind(), o.GetAPIVersion(), dry, key)
			}
		}
	}
}

// TestAWithdrawnClaimStaysWithdrawn shows that server-side apply removes one of several answers to claims, and
// one of several claims, while a client of v1alpha1 is a manager, too.
func TestAWithdrawnClaimStaysWithdrawn(t *testing.T) {
	t.Parallel()
	p, c := claiming(t, `{kind: C, claims: [{resource: secrets, verbs: ["*"]}, {resource: configmaps, verbs: ["*"]}, {resource: events, verbs: ["*"]}]}`), newTenant(t)
	for name, is := range map[string]struct {
		of      *tenant
		r       schema.GroupVersionResource
		kind    string
		name    string
		more    string
		entries []string
	}{
		"answers to some verbs": {c, apiBindings, "APIBinding", "widgets", `reference: {export: {path: ` + string(p.name) + `, name: widgets}},`,
			[]string{
				`{resource: secrets, verbs: [get], state: Accepted, selector: {matchAll: true}}`,
				`{resource: configmaps, verbs: [list], state: Accepted, selector: {matchLabels: {a: b}}}`,
				`{resource: events, verbs: [get], state: Rejected, selector: {matchAll: true}}`,
			}},
		"answers in v1alpha1, too": {c, apiBindings, "APIBinding", "widgets", `reference: {export: {path: ` + string(p.name) + `, name: widgets}},`,
			[]string{
				`{resource: secrets, verbs: ["*"], state: Accepted, selector: {matchAll: true}}`,
				`{resource: configmaps, verbs: ["*"], state: Accepted, selector: {matchAll: true}}`,
				`{resource: events, verbs: [get], state: Accepted, selector: {matchAll: true}}`,
			}},
		"claims": {p, apiExports, "APIExport", "applied", "",
			[]string{`{resource: secrets, verbs: [get]}`, `{resource: configmaps, verbs: ["*"]}`, `{resource: events, verbs: [list]}`, `{resource: leases, group: coordination.k8s.io, verbs: [get]}`}},
	} {
		client, old := is.of.any.Resource(is.r), is.of.any.Resource(is.r.GroupResource().WithVersion("v1alpha1"))
		with := func(entries ...string) *unstructured.Unstructured {
			return decoded(`{apiVersion: apis.kcp.io/v1alpha2, kind: %s, metadata: {name: %s}, spec: {%s permissionClaims: [%s]}}`, is.kind, is.name, is.more, strings.Join(entries, ", "))
		}
		applies(t, client, with(is.entries...))
		labelled(t, old, is.name)
		applies(t, old, decoded(`{apiVersion: apis.kcp.io/v1alpha1, kind: %s, metadata: {name: %s, labels: {a: b}}, spec: {%s}}`, is.kind, is.name, strings.TrimSuffix(is.more, ",")))
		for left := is.entries[1:]; ; left = left[1:] {
			applies(t, client, with(left...))
			o := must(client.Get(t.Context(), is.name, metav1.GetOptions{}))(t)
			for _, shown := range append(must(old.List(t.Context(), metav1.ListOptions{}))(t).Items, *must(old.Get(t.Context(), is.name, metav1.GetOptions{}))(t), *o) {
				if strings.Contains(fmt.Sprint(shown.Object["metadata"]), "merge.kcp.io") {
					t.Errorf("%s: the merge shows in %v", name, shown.Object["metadata"])
				}
			}
			if got, _, _ := unstructured.NestedSlice(o.Object, "spec", "permissionClaims"); len(got) != len(left) {
				t.Errorf("%s: %v after an apply of %v", name, got, left)
			}
			if len(left) == 0 {
				break
			}
		}
	}
}

// TestPreservedFieldsCanBeRemoved shows that server-side apply removes one of several fields that an APIConversion
// preserves, while a client of a version without them is a manager, too.
func TestPreservedFieldsCanBeRemoved(t *testing.T) {
	t.Parallel()
	p, c := newTenant(t), newTenant(t)
	of := peopleSchema()
	versions, _, _ := unstructured.NestedSlice(of.Object, "spec", "versions")
	_ = unstructured.SetNestedField(versions[1].(map[string]any), map[string]any{"type": "object", "properties": map[string]any{"name": map[string]any{"type": "string"},
		"color": map[string]any{"type": "string"}, "size": map[string]any{"type": "string"}, "shape": map[string]any{"type": "string"}}}, "schema", "properties", "spec")
	_ = unstructured.SetNestedSlice(of.Object, versions, "spec", "versions")
	p.create(apiSchemas, of)
	p.create(apiConversions, decoded(`{apiVersion: apis.kcp.io/v1alpha1, kind: APIConversion, metadata: {name: v1.people.example.com}, spec: {conversions: [
		{from: v1, to: v2, rules: []}, {from: v2, to: v1, rules: [], preserve: [spec.color, spec.size, spec.shape]}]}}`))
	p.create(apiExports, decoded(`{apiVersion: apis.kcp.io/v1alpha2, kind: APIExport, metadata: {name: widgets}, spec: {resources: [{name: people, group: example.com, schema: v1.people.example.com}]}}`))
	c.create(apiBindings, bindingTo("people", p.name, "widgets"))
	applies(t, c.people(peopleV2), newPerson("v2", `{color: red, size: big, shape: round}`))
	labelled(t, c.people(peopleV1), "ada")
	for _, step := range []struct{ version, spec, want string }{
		{"v2", `{color: red, shape: flat}`, `{"color":"red","shape":"flat"}`},
		{"v1", `{name: Ada}`, `{"color":"red","name":"Ada","shape":"flat"}`},
		{"v2", `{shape: flat, size: big}`, `{"name":"Ada","shape":"flat","size":"big"}`},
		{"v1", `{name: Eve}`, `{"name":"Eve","shape":"flat","size":"big"}`},
		{"v2", `{}`, `{"name":"Eve"}`},
	} {
		applies(t, c.people(peopleV1.GroupResource().WithVersion(step.version)), newPerson(step.version, step.spec))
		o := must(c.people(peopleV2).Get(t.Context(), "ada", metav1.GetOptions{}))(t)
		if got := must(json.Marshal(o.Object["spec"]))(t); string(got) != step.want {
			t.Errorf("%s in %s: %s, want %s", step.spec, step.version, got, step.want)
		}
	}
}
