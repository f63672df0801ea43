package server_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

// typed returns a WorkspaceType with the given YAML as spec.
func typed(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	text := "apiVersion: tenancy.kcp.io/v1alpha1\nkind: WorkspaceType\nmetadata: {name: " + name + "}\nspec: " + spec
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

// defineType creates a WorkspaceType and returns the name of its initializer.
func (c *tenant) defineType(name, spec string) (id string) {
	c.t.Helper()
	must(c.any.Resource(workspaceTypes).Create(c.t.Context(), typed(c.t, name, spec), metav1.CreateOptions{}))(c.t)
	return string(c.name) + ":" + name
}

// of returns a Workspace of a type, with the path of the type unless path is empty.
func of(name, path, typ string) *unstructured.Unstructured {
	ws := workspace(name)
	ref := map[string]any{"name": typ}
	if path != "" {
		ref["path"] = path
	}
	ws.Object["spec"] = map[string]any{"type": ref}
	return ws
}

// makeWorkspace creates a Workspace.
func (c *tenant) makeWorkspace(ws *unstructured.Unstructured) *unstructured.Unstructured {
	c.t.Helper()
	return must(c.any.Resource(workspaces).Create(c.t.Context(), ws, metav1.CreateOptions{}))(c.t)
}

// refuses checks that the creation of a Workspace is forbidden with a text.
func (c *tenant) refuses(ws *unstructured.Unstructured, why string) {
	c.t.Helper()
	_, err := c.any.Resource(workspaces).Create(c.t.Context(), ws, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), why) {
		c.t.Errorf("workspace %s: %v, not %q", ws.GetName(), err, why)
	}
}

// inside returns the cluster of a Workspace, with the clients of the system.
func (c *tenant) inside(ws *unstructured.Unstructured) *tenant {
	return at(c.t, c.server, clusterOf(ws), server.System())
}

// binding returns the cluster of a workspace whose type does not extend universal, after it was
// bound to the API of workspaces.
func (c *tenant) binding(ws *unstructured.Unstructured) *tenant {
	c.t.Helper()
	in := c.inside(ws)
	in.create(apiBindings, bindingTo("tenancy", cluster.Root, "tenancy.kcp.io"))
	return in
}

func (c *tenant) own() *unstructured.Unstructured {
	c.t.Helper()
	return must(c.any.Resource(logicalClusters).Get(c.t.Context(), "cluster", metav1.GetOptions{}))(c.t)
}

// condition returns the status and reason of a condition.
func condition(o *unstructured.Unstructured, typ string) string {
	all, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range all {
		if m := c.(map[string]any); m["type"] == typ {
			return strings.TrimSuffix(fmt.Sprintf("%v/%v", m["status"], m["reason"]), "/<nil>")
		}
	}
	return ""
}

func TestTheTypesThatEveryServerHas(t *testing.T) {
	t.Parallel()
	s := must(shared())(t)
	root := at(t, s, cluster.Root, as("alice"))
	for _, name := range []string{"root", "universal", "organization", "team", "home"} {
		typ := must(root.any.Resource(workspaceTypes).Get(t.Context(), name, metav1.GetOptions{}))(t)
		if got := typ.GetAnnotations()["kcp.io/path"]; got != "root" {
			t.Errorf("%s says that it is at %q", name, got)
		}
		if condition(typ, "Ready") != "True" || condition(typ, "VirtualWorkspaceURLsReady") != "True" {
			t.Errorf("%s has the status %v", name, typ.Object["status"])
		}
	}
}

func TestTypeTellsOfItsViewsWhenItIsMade(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	forged := typed(t, "web", `{initializer: true}`)
	forged.SetAnnotations(map[string]string{"kcp.io/path": "root:elsewhere"})
	forged.Object["status"] = map[string]any{"virtualWorkspaces": []any{map[string]any{"url": "https://evil", "type": "initializing"}}}
	alice := c.allow("alice")
	dry := must(alice.any.Resource(workspaceTypes).Create(t.Context(), forged.DeepCopy(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}))(t)
	dryApplied := must(alice.any.Resource(workspaceTypes).Apply(t.Context(), "web", typed(t, "web", `{initializer: true}`), metav1.ApplyOptions{FieldManager: "x", DryRun: []string{metav1.DryRunAll}}))(t)
	typ := must(alice.any.Resource(workspaceTypes).Create(t.Context(), forged, metav1.CreateOptions{}))(t)
	check := func(typ *unstructured.Unstructured) {
		t.Helper()
		views, _, _ := unstructured.NestedSlice(typ.Object, "status", "virtualWorkspaces")
		want := []any{
			map[string]any{"type": "initializing", "url": c.server.url + "/services/initializingworkspaces/" + string(c.name) + ":web"},
			map[string]any{"type": "terminating", "url": c.server.url + "/services/terminatingworkspaces/" + string(c.name) + ":web"},
		}
		if diff := cmp.Diff(want, views); diff != "" {
			t.Error(diff)
		}
		if condition(typ, "Ready") != "True" || condition(typ, "VirtualWorkspaceURLsReady") != "True" || typ.GetAnnotations()["kcp.io/path"] != string(c.name) {
			t.Errorf("the type is %v", typ.Object)
		}
	}
	check(typ)
	check(dry)
	check(dryApplied)
	for _, patch := range []string{
		`{"metadata":{"annotations":{"kcp.io/path":"root:other"}}}`, `{"metadata":{"annotations":{"kcp.io/path":null}}}`,
		`{"status":{"virtualWorkspaces":[{"url":"https://evil"}],"conditions":[]}}`,
	} {
		check(must(alice.any.Resource(workspaceTypes).Patch(t.Context(), "web", types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t))
	}
	applied := typed(t, "web", `{initializer: true}`)
	applied.SetAnnotations(map[string]string{"kcp.io/path": "root:applied"})
	check(must(alice.any.Resource(workspaceTypes).Apply(t.Context(), "web", applied, metav1.ApplyOptions{FieldManager: "t", Force: true}))(t))
	if _, err := alice.any.Resource(workspaceTypes).Patch(t.Context(), "web", types.MergePatchType, []byte(`{"status":{"conditions":[]}}`), metav1.PatchOptions{}, "status"); !apierrors.IsForbidden(err) {
		t.Errorf("a user changes the status: %v", err)
	}
}

func TestTypesThatCannotBe(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	for name, say := range map[string]struct{ name, spec, why string }{
		"root elsewhere":          {"root", `{}`, "can only be in the root workspace"},
		"system":                  {"system", `{}`, "reserved"},
		"any":                     {"any", `{}`, "reserved"},
		"children without a path": {"a", `{limitAllowedChildren: {types: [{name: b}]}}`, "spec.limitAllowedChildren.types[0].path must be set"},
		"parents without a path":  {"a", `{limitAllowedParents: {types: [{name: b, path: root}, {name: b}]}}`, "spec.limitAllowedParents.types[1].path must be set"},
		"default without a path":  {"a", `{defaultChildWorkspaceType: {name: b}}`, "spec.defaultChildWorkspaceType.path must be set"},
		"a label that is none":    {"a", `{additionalWorkspaceLabels: {"a b": c}}`, "additionalWorkspaceLabels"},
		"an initializer a":        {"a", `{initializer: true}`, "has at least 2 characters"},
		"a label of the system":   {"a", `{additionalWorkspaceLabels: {tenancy.kcp.io/phase: Ready}}`, "repeats the phase"},
	} {
		_, err := c.any.Resource(workspaceTypes).Create(t.Context(), typed(t, say.name, say.spec), metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) || !strings.Contains(fmt.Sprint(err), say.why) {
			t.Errorf("%s: %v, not %q", name, err, say.why)
		}
	}
	made := typed(t, "", `{initializer: true}`)
	made.SetGenerateName("a")
	must(c.any.Resource(workspaceTypes).Create(t.Context(), made, metav1.CreateOptions{}))(t)
}

func TestLabelsThatATypeGives(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.defineType("gold", `{additionalWorkspaceLabels: {tier: gold, team: none}}`)
	ws := of("w", "", "gold")
	ws.SetLabels(map[string]string{"team": "mine"})
	ws = c.makeWorkspace(ws)
	want := map[string]string{"tier": "gold", "team": "mine", "tenancy.kcp.io/phase": "Ready"}
	if diff := cmp.Diff(want, ws.GetLabels()); diff != "" {
		t.Error(diff)
	}
	change := func(patch string) {
		t.Helper()
		must(c.any.Resource(workspaceTypes).Patch(t.Context(), "gold", types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
	}
	// Existing workspaces do not change, unless the lifecycle of the type is Maintain.
	change(`{"spec":{"additionalWorkspaceLabels":{"site":"north"}}}`)
	change(`{"spec":{"defaultAPIBindingLifecycle":"Maintain","additionalWorkspaceLabels":{"site":"south","team":"other"}}}`)
	ws = c.await(workspaces, "", "w", func(o *unstructured.Unstructured) bool { return o.GetLabels()["site"] != "" })
	want["site"] = "south"
	if diff := cmp.Diff(want, ws.GetLabels()); diff != "" {
		t.Error(diff)
	}
}

// After a restart, changed and deleted types stay so, and waiting workspaces still wait.
func TestTypesAfterARestart(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	root := at(t, s, cluster.Root, server.System())
	ctx := context.Background()
	must(root.any.Resource(workspaceTypes).Patch(ctx, "universal", types.MergePatchType, []byte(`{"spec":{"additionalWorkspaceLabels":{"mine":"yes"}}}`), metav1.PatchOptions{}))(t)
	if err := root.any.Resource(workspaceTypes).Delete(ctx, "team", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := root.kube.RbacV1().ClusterRoleBindings().Delete(ctx, "system:kcp:universal-workspacetype-use", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	root.defineType("web", `{initializer: true}`)
	ws := root.makeWorkspace(of("w", "", "web"))
	s.Close()

	s = start(t, dir)
	defer s.Close()
	root = at(t, s, cluster.Root, server.System())
	universal := must(root.any.Resource(workspaceTypes).Get(ctx, "universal", metav1.GetOptions{}))(t)
	if text(universal, "spec", "additionalWorkspaceLabels", "mine") != "yes" {
		t.Errorf("a change of a type is lost: %v", universal.Object["spec"])
	}
	if _, err := root.any.Resource(workspaceTypes).Get(ctx, "team", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a type that was deleted: %v", err)
	}
	if _, err := root.kube.RbacV1().ClusterRoleBindings().Get(ctx, "system:kcp:universal-workspacetype-use", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what was taken from everybody: %v", err)
	}
	now := must(root.any.Resource(workspaces).Get(ctx, "w", metav1.GetOptions{}))(t)
	if text(now, "status", "phase") != "Initializing" || now.GetUID() != ws.GetUID() {
		t.Errorf("the workspace is %v", now.Object["status"])
	}
	root.inside(ws).become("Initializing", map[string][]string{"initializers": {}})
	root.await(workspaces, "", "w", func(o *unstructured.Unstructured) bool { return text(o, "status", "phase") == "Ready" })
}
