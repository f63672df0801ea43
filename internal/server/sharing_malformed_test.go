package server_test

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// TestMistakesComeBeforeRights shows that the answer to a malformed object names the field and the fix,
// also if the user lacks a right that a correct object would need.
func TestMistakesComeBeforeRights(t *testing.T) {
	t.Parallel()
	p := exporter(t)
	p.allows("access", "User", "mallory", []string{"get"}, "nothing")
	p.allowsIn("apis", "mallory", []string{"create", "patch"}, "apis.kcp.io", "apibindings")
	p.allowsIn("slices", "mallory", []string{"create"}, "apis.kcp.io", "apiexportendpointslices")
	p.allowsIn("rollouts", "mallory", []string{"create"}, "apis.kcp.io", "apiexportrollouts")
	p.allowsIn("cache", "mallory", []string{"create"}, "cache.kcp.io", "*")
	p.allowsIn("tenancy", "mallory", []string{"create"}, "tenancy.kcp.io", "*")
	mallory := at(t, p.server, p.name, as("mallory"))
	older := apiBindings.GroupResource().WithVersion("v1alpha1")
	for name, c := range map[string]struct {
		of                  schema.GroupVersionResource
		kind, spec, mistake string
		is                  func(error) bool
	}{
		"a binding without an export":  {apiBindings, "APIBinding", "{reference: {}}", "spec.reference.export: Required value: set export.name to the name of the APIExport", apierrors.IsInvalid},
		"a binding without a name":     {apiBindings, "APIBinding", "{reference: {export: {path: root}}}", "spec.reference.export.name: Required value", apierrors.IsInvalid},
		"a binding with an empty name": {apiBindings, "APIBinding", `{reference: {export: {path: root, name: ""}}}`, "spec.reference.export.name: Required value: set it to the name of the APIExport", apierrors.IsInvalid},
		"a binding without an export, with a claim to more than the user may do": {apiBindings, "APIBinding", "{reference: {}, permissionClaims: [{resource: secrets, verbs: ['*'], state: Accepted, selector: {matchAll: true}}]}", "spec.reference.export: Required value", apierrors.IsInvalid},
		"a binding without an export, in v1alpha1":                               {older, "APIBinding", "{reference: {}}", "export must be set", apierrors.IsInvalid},
		"a binding with an empty name, in v1alpha1":                              {older, "APIBinding", `{reference: {export: {name: ""}}}`, "spec.reference.export.name: Required value: set it", apierrors.IsInvalid},
		"a slice without a spec":                                                 {apiSlices, "APIExportEndpointSlice", "", "spec.export.name: Required value: set it to the name of the APIExport", apierrors.IsInvalid},
		"a slice with an empty name":                                             {apiSlices, "APIExportEndpointSlice", `{export: {path: root, name: ""}}`, "spec.export.name: Required value", apierrors.IsInvalid},
		"a slice of cached objects without a spec":                               {cachedSlices, "ClusterCachedResourceEndpointSlice", "", "[spec.clusterCachedResource.name: Required value: set it to the name of the ClusterCachedResource, spec.export.name: Required value", apierrors.IsInvalid},
		"a rollout with a malformed schema":                                      {apiRollouts, "APIExportRollout", "{export: widgets, schemas: [widgets]}", "spec.schemas[0]: Invalid value", apierrors.IsInvalid},
		"a rollout with a pause that is none":                                    {apiRollouts, "APIExportRollout", "{export: widgets, schemas: [v1.widgets.example.com], rings: [{name: a, percent: 1, pause: soon}]}", "it is malformed", apierrors.IsBadRequest},
		"a workspace with a type that none can have":                             {workspaces, "Workspace", "{type: {name: Team}}", "spec.type.name: Invalid value", apierrors.IsInvalid},
		"a workspace with a path that none can have":                             {workspaces, "Workspace", "{type: {name: team, path: 'root:'}}", "spec.type.path: Invalid value", apierrors.IsInvalid},
		"a type with a default binding to nothing":                               {workspaceTypes, "WorkspaceType", `{defaultAPIBindings: [{export: widgets}, {export: ""}]}`, "spec.defaultAPIBindings[1].export: Required value", apierrors.IsInvalid},
	} {
		o := decoded("{apiVersion: %s, kind: %s, metadata: {name: x}, spec: %s}", c.of.GroupVersion(), c.kind, c.spec)
		if c.spec == "" {
			delete(o.Object, "spec")
		}
		_, err := mallory.any.Resource(c.of).Create(t.Context(), o, metav1.CreateOptions{})
		if !c.is(err) || !strings.Contains(err.Error(), c.mistake) {
			t.Errorf("%s: %v, not %q", name, err, c.mistake)
		}
	}
	p.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	for patch, mistake := range map[string]string{
		`{"spec":{"reference":{"export":null}}}`:        "spec.reference",
		`{"spec":{"reference":{"export":{"name":""}}}}`: "spec.reference",
	} {
		if _, err := mallory.any.Resource(apiBindings).Patch(t.Context(), "widgets", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), mistake) {
			t.Errorf("%s: %v", patch, err)
		}
	}
}
