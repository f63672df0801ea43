package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	coreapi "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
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
		"bindings":                {"a", `{defaultAPIBindings: [{export: e, path: root}]}`, "APIs cannot be shared"},
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

func TestTypeIsFoundWhereItIsAskedFor(t *testing.T) {
	t.Parallel()
	top := newTenant(t)
	top.defineType("shared", `{}`)
	top.defineType("hidden", `{}`)
	mid := top.inside(top.makeWorkspace(of("mid", "", "shared")))
	mid.defineType("hidden", `{additionalWorkspaceLabels: {from: mid}}`)
	low := mid.inside(mid.makeWorkspace(of("low", "", "shared")))

	path := string(top.name) + ":mid"
	for i, say := range []struct{ path, typ, want, label string }{
		{"", "shared", string(top.name) + ":shared", ""}, // in an ancestor
		{"", "hidden", path + ":hidden", "mid"},          // the nearest one
		{"", "universal", "root:universal", ""},          // in root
		{string(top.name), "hidden", string(top.name) + ":hidden", ""},
		{path, "hidden", path + ":hidden", "mid"},
		{string(mid.name), "hidden", path + ":hidden", "mid"}, // by cluster name
	} {
		ws := low.makeWorkspace(of(fmt.Sprint("w", i), say.path, say.typ))
		l := low.inside(ws).own()
		if got := l.GetAnnotations()["internal.tenancy.kcp.io/type"]; got != say.want || ws.GetLabels()["from"] != say.label {
			t.Errorf("%q in %q is %s, not %s; labels %v", say.typ, say.path, got, say.want, ws.GetLabels())
		}
	}
	low.refuses(of("x", "", "nosuch"), `workspace type "nosuch" cannot be resolved`)
	low.refuses(of("x", path, "shared"), `workspace type "`+path+`:shared" cannot be resolved`)
	low.refuses(of("x", "root:no:such", "a"), `cannot be resolved`)
	low.refuses(of("x", "system:admin", "a"), `cannot be resolved`)
}

func TestTypeThatIsNotGiven(t *testing.T) {
	t.Parallel()
	top := newTenant(t)
	here := string(top.name)
	top.defineType("leaf", `{}`)
	top.defineType("branch", `{defaultChildWorkspaceType: {name: leaf, path: `+here+`}}`)
	branch := top.inside(top.makeWorkspace(of("branch", "", "branch")))
	leaf := branch.makeWorkspace(workspace("leaf"))
	if got := text(leaf, "spec", "type", "path") + ":" + text(leaf, "spec", "type", "name"); got != here+":leaf" {
		t.Errorf("a workspace that asks for no type is of %s", got)
	}
	// The default is not inherited: the type leaf has none.
	if ws := branch.inside(leaf).makeWorkspace(workspace("below")); text(ws, "spec", "type", "name") != "universal" {
		t.Errorf("below the leaf is a %s", text(ws, "spec", "type", "name"))
	}
	// A missing type of the parent blocks creations until it exists again.
	if err := top.any.Resource(workspaceTypes).Delete(t.Context(), "branch", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	branch.refuses(workspace("other"), "cannot be resolved")
	top.defineType("branch", `{}`)
	branch.makeWorkspace(workspace("other"))
}

func TestTypesThatExtendOthers(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.defineType("one", `{extend: {with: [{name: two}]}}`)
	c.refuses(of("missing", "", "one"), "cannot be resolved")
	c.defineType("two", `{extend: {with: [{name: three}, {name: base}]}}`)
	c.defineType("three", `{extend: {with: [{name: one}]}}`)
	base := c.defineType("base", `{initializer: true}`)
	c.refuses(of("cycle", "", "one"), "extends itself")
	patch := []byte(`{"spec":{"initializer":true,"extend":{"with":[{"name":"base"}]}}}`) // base is now reached in two ways
	must(c.any.Resource(workspaceTypes).Patch(t.Context(), "three", types.MergePatchType, patch, metav1.PatchOptions{}))(t)
	ws := c.makeWorkspace(of("diamond", "", "one"))
	got, _, _ := unstructured.NestedStringSlice(ws.Object, "status", "initializers")
	if diff := cmp.Diff([]string{string(c.name) + ":three", base}, got); diff != "" {
		t.Error(diff)
	}
}

func TestUseOfATypeIsAPermission(t *testing.T) {
	t.Parallel()
	c, elsewhere := newTenant(t), newTenant(t)
	elsewhere.defineType("base", `{}`)
	elsewhere.defineType("fine", `{extend: {with: [{name: base}]}}`)
	bob := c.allow("bob") // bob cannot enter the other cluster
	path := string(elsewhere.name)
	use := func(name string) {
		t.Helper()
		rule := rbacv1.PolicyRule{Verbs: []string{"use"}, APIGroups: []string{"tenancy.kcp.io"}, Resources: []string{"workspacetypes"}, ResourceNames: []string{name}}
		must(elsewhere.kube.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{rule}}, metav1.CreateOptions{}))(t)
		must(elsewhere.kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "bob"}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		}, metav1.CreateOptions{}))(t)
	}
	bob.refuses(of("w", path, "fine"), "missing verb='use' permission")
	use("fine")
	bob.refuses(of("w", path, "fine"), `workspace type "`+path+`:fine" extends another: workspace type "base" cannot be resolved, or missing verb='use' permission`)
	use("base")
	bob.makeWorkspace(of("w", path, "fine"))
	bob.makeWorkspace(of("u", "root", "universal")) // all users may
	if _, err := bob.any.Resource(workspaces).Create(t.Context(), of("h", "root", "home"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("bob uses the type of homes: %v", err)
	}
	c.refuses(of("h", "root", "home"), "cannot have any parent") // not even the system may
}

func TestWhichWorkspacesMayBeWhere(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	here := string(c.name)
	c.defineType("plain", `{}`)
	c.defineType("group", `{limitAllowedChildren: {types: [{name: member, path: `+here+`}]}}`)
	c.defineType("member", `{limitAllowedParents: {types: [{name: group, path: `+here+`}]}}`)
	c.defineType("chief", `{extend: {with: [{name: member}]}}`)
	c.defineType("leaf", `{limitAllowedChildren: {none: true}}`)
	group := c.inside(c.makeWorkspace(of("group", "", "group")))
	group.makeWorkspace(of("m", "", "member"))
	group.makeWorkspace(of("chief", "", "chief")) // it extends member
	group.refuses(of("p", "", "plain"), fmt.Sprintf("only allows [%s:member] child workspaces, but child type %q only implements [%s:plain]", here, here+":plain", here))
	c.refuses(of("m", "", "member"), "the parent has no type")
	plain := c.inside(c.makeWorkspace(of("plain", "", "plain")))
	plain.refuses(of("chief", "", "chief"), fmt.Sprintf("only allows [%s:group] parent workspaces, but parent type %q only implements [%s:plain]", here, here+":plain", here))
	c.inside(c.makeWorkspace(of("leaf", "", "leaf"))).refuses(workspace("x"), "cannot have any children")
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

// A workspace is Initializing while it has initializers. It becomes Ready without delay when
// the last one is removed.
func TestWorkspaceWaitsForItsInitializers(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	base := c.defineType("base", `{initializer: true}`)
	web := c.defineType("web", `{initializer: true, terminator: true, extend: {with: [{name: universal, path: root}, {name: base}]}}`)
	alice := c.allow("alice")
	ws := alice.makeWorkspace(of("w", "", "web"))
	in := c.inside(ws)
	l := in.own()
	for what, o := range map[string]*unstructured.Unstructured{"workspace": ws, "its cluster": l} {
		waits, _, _ := unstructured.NestedStringSlice(o.Object, "status", "initializers")
		if diff := cmp.Diff([]string{base, web}, waits); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
		if text(o, "status", "phase") != "Initializing" || o.GetLabels()["tenancy.kcp.io/phase"] != "Initializing" || condition(o, "WorkspaceInitialized") != "False/InitializerExists" {
			t.Errorf("%s: %v", what, o.Object)
		}
		var owner coreapi.UserInfo
		if err := json.Unmarshal([]byte(o.GetAnnotations()["experimental.tenancy.kcp.io/owner"]), &owner); err != nil || owner.Username != "alice" || len(owner.Groups) == 0 {
			t.Errorf("%s: owner %s", what, o.GetAnnotations())
		}
	}
	if diff := cmp.Diff(map[string]any{"initializers": []any{base, web}, "terminators": []any{web}}, map[string]any{
		"initializers": l.Object["spec"].(map[string]any)["initializers"], "terminators": l.Object["spec"].(map[string]any)["terminators"]}); diff != "" {
		t.Error(diff)
	}
	labelled := func(o *unstructured.Unstructured, key, value string) bool { return o.GetLabels()[key] == value }
	for _, id := range []string{web, base} {
		if key, value := coreapi.Initializer(id).Label(); !labelled(l, key, value) {
			t.Errorf("no label %s=%s in %v", key, value, l.GetLabels())
		}
	}
	if key, value := coreapi.Terminator(web).Label(); !labelled(l, key, value) {
		t.Errorf("no label %s=%s in %v", key, value, l.GetLabels())
	}
	if _, err := in.kube.CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{}); err != nil {
		t.Errorf("initializers find what every workspace has: %v", err)
	}
	in.become("Initializing", map[string][]string{"initializers": {base}})
	ws = c.await(workspaces, "", "w", func(o *unstructured.Unstructured) bool {
		waits, _, _ := unstructured.NestedStringSlice(o.Object, "status", "initializers")
		return len(waits) == 1
	})
	if text(ws, "status", "phase") != "Initializing" {
		t.Errorf("phase %s while one is left", text(ws, "status", "phase"))
	}
	in.become("Initializing", map[string][]string{"initializers": {}})
	ws = c.await(workspaces, "", "w", func(o *unstructured.Unstructured) bool { return text(o, "status", "phase") == "Ready" })
	l = in.own()
	for what, o := range map[string]*unstructured.Unstructured{"workspace": ws, "its cluster": l} {
		if text(o, "status", "phase") != "Ready" || o.GetLabels()["tenancy.kcp.io/phase"] != "Ready" || condition(o, "WorkspaceInitialized") != "True" ||
			o.GetAnnotations()["experimental.tenancy.kcp.io/owner"] != `{"username":"alice"}` {
			t.Errorf("%s that is ready: %v", what, o.Object)
		}
	}
	for key := range l.GetLabels() {
		if strings.HasPrefix(key, "initializer.") {
			t.Errorf("label %s is left", key)
		}
	}
}

// A workspace keeps waiting for the initializer of a deleted type. It becomes Ready when the
// initializer finishes, and can be deleted.
func TestTypeGoesWhileItsWorkspaceWaits(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	id := c.defineType("web", `{initializer: true}`)
	w, v := c.makeWorkspace(of("w", "", "web")), c.makeWorkspace(of("v", "", "web"))
	if err := c.any.Resource(workspaceTypes).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if o := c.inside(w).own(); !strings.Contains(text(o, "status", "conditions"), id) {
		t.Errorf("it does not say what it waits for: %v", o.Object["status"])
	}
	c.inside(w).become("Initializing", map[string][]string{"initializers": {}})
	c.await(workspaces, "", "w", func(o *unstructured.Unstructured) bool { return text(o, "status", "phase") == "Ready" })
	c.deleteWorkspace("v")
	c.await(workspaces, "", "v", gone)
	c.nothingLeft(clusterOf(v))
}

// A workspace with a False condition is unavailable by its path. It stays available by name,
// for repairs.
func TestWorkspaceIsUnavailableWhileAConditionFails(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	w := c.workspace("w")
	owner, below, guest := w.owner(), w.workspace("below"), w.person("guest")
	w.bind("guest", auth.WorkspaceAccessRole, guest.subject())
	below.grant("owner", rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "system:kcp:serviceaccount:" + string(w.name) + ":default:owner"})
	answers := func(phase string) {
		t.Helper()
		inside := map[string]int{"Ready": http.StatusOK, "Unavailable": http.StatusServiceUnavailable}[phase]
		path := "/clusters/" + string(c.name) + ":w"
		for _, r := range []struct {
			who  visitor
			path string
			code int
		}{
			{c.nobody(), path + "/api/v1/namespaces", http.StatusForbidden}, {c.anonymous(), path + "/healthz", http.StatusOK},
			{owner, path + "/api/v1/namespaces", inside}, {owner, path + "/version", inside}, {owner, path + ":below/api/v1/namespaces", inside},
			{owner, w.path("/api/v1/namespaces"), http.StatusOK}, {owner, w.path(":below/api/v1/namespaces"), http.StatusOK},
		} {
			got := r.who.send("GET", r.path, "")
			if got.code != r.code || got.code == http.StatusServiceUnavailable && got.body != "Not available.\n" {
				t.Errorf("%s: %s at %s: %d %q", phase, r.who.name, r.path, got.code, got.body)
			}
		}
		for _, at := range []string{":w", ":w:below"} {
			if e, _, body := c.masters().explained(string(c.name) + at); string(e.Phase) != phase {
				t.Errorf("%s: %s is explained as %s", phase, at, body)
			}
		}
		var reached tenancyapi.WorkspaceList
		if code, body := guest.get("/services/reachableworkspaces", &reached); code != http.StatusOK || !slices.ContainsFunc(reached.Items, func(ws tenancyapi.Workspace) bool {
			return ws.Spec.Cluster == string(w.name) && string(ws.Status.Phase) == phase
		}) {
			t.Errorf("%s: the guest reaches %s", phase, body)
		}
	}
	answers("Ready")
	for status, phase := range map[string]string{"False": "Unavailable", "True": "Ready"} {
		patch := fmt.Sprintf(`[{"op":"add","path":"/status/conditions/-","value":{"type":"WorkspaceExample","status":%q,"lastTransitionTime":"2026-01-02T03:04:05Z"}}]`, status)
		must(c.any.Resource(workspaces).Patch(t.Context(), "w", types.JSONPatchType, []byte(patch), metav1.PatchOptions{}, "status"))(t)
		c.await(workspaces, "", "w", func(o *unstructured.Unstructured) bool {
			return text(o, "status", "phase") == phase && o.GetLabels()["tenancy.kcp.io/phase"] == phase
		})
		answers(phase)
		last := must(c.any.Resource(workspaces).Get(t.Context(), "w", metav1.GetOptions{}))(t)
		all, _, _ := unstructured.NestedSlice(last.Object, "status", "conditions")
		patch = fmt.Sprintf(`[{"op":"remove","path":"/status/conditions/%d"}]`, len(all)-1)
		must(c.any.Resource(workspaces).Patch(t.Context(), "w", types.JSONPatchType, []byte(patch), metav1.PatchOptions{}, "status"))(t)
		c.await(workspaces, "", "w", func(o *unstructured.Unstructured) bool { return text(o, "status", "phase") == "Ready" })
	}
}

// Users cannot change the fields that the system sets in a workspace, with any kind of write.
func TestNobodyForgesWhatAWorkspaceIs(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	id := c.defineType("web", `{initializer: true}`)
	alice := c.allow("alice")
	forged := of("w", "", "web")
	for _, field := range []string{"cluster", "URL"} { // clients send these fields empty
		_ = unstructured.SetNestedField(forged.Object, "", "spec", field)
	}
	forged.SetAnnotations(map[string]string{
		"experimental.tenancy.kcp.io/owner": `{"username":"bob"}`, "internal.tenancy.kcp.io/cluster": "root",
		"internal.tenancy.kcp.io/shard": "x", "core.kcp.io/shard": "x", "internal.tenancy.kcp.io/type": "root:root",
	})
	forged.SetLabels(map[string]string{"tenancy.kcp.io/phase": "Ready"})
	forged.Object["status"] = map[string]any{"phase": "Ready", "initializers": []any{}}
	dry := must(alice.any.Resource(workspaces).Create(t.Context(), forged, metav1.CreateOptions{DryRun: []string{"All"}}))(t)
	if text(dry, "spec", "cluster") != "" || strings.Contains(dry.GetAnnotations()["experimental.tenancy.kcp.io/owner"], "bob") {
		t.Errorf("a dry run answers %v", dry.Object)
	}
	c.await(workspaces, "", "w", gone)
	ws := alice.makeWorkspace(forged)
	check := func(ws *unstructured.Unstructured) {
		t.Helper()
		a := ws.GetAnnotations()
		if text(ws, "spec", "type", "name") != "web" || text(ws, "spec", "type", "path") != string(c.name) || text(ws, "status", "phase") != "Initializing" || ws.GetLabels()["tenancy.kcp.io/phase"] != "Initializing" ||
			a["internal.tenancy.kcp.io/cluster"] != text(ws, "spec", "cluster") || a["internal.tenancy.kcp.io/shard"] != "1pfxsevk" ||
			a["core.kcp.io/shard"] != "root" || a["internal.tenancy.kcp.io/type"] != "" || !strings.Contains(a["experimental.tenancy.kcp.io/owner"], `"alice"`) {
			t.Errorf("the workspace is %v", ws.Object)
		}
	}
	check(ws)
	write := func(o *tenant, r schema.GroupVersionResource, name, patch string, sub ...string) error {
		_, err := o.any.Resource(r).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, sub...)
		return err
	}
	inside := at(t, c.server, clusterOf(ws), as("alice"))
	for _, status := range []string{`{"status":{"phase":"Ready"}}`, `{"status":{"initializers":[]}}`, `{"status":{"phase":"Scheduling"}}`, `{"status":{"conditions":[]}}`} {
		if err := write(alice, workspaces, "w", status, "status"); !apierrors.IsForbidden(err) {
			t.Errorf("alice sets %s of the workspace: %v", status, err)
		}
		if err := write(inside, logicalClusters, "cluster", status, "status"); !apierrors.IsForbidden(err) {
			t.Errorf("alice sets %s of its cluster: %v", status, err)
		}
		if err := write(alice, workspaces, "w", status); err != nil { // does not write the status
			t.Errorf("%s: %v", status, err)
		}
	}
	for _, key := range []string{"internal.tenancy.kcp.io/cluster", "internal.tenancy.kcp.io/shard", "core.kcp.io/shard", "internal.tenancy.kcp.io/type"} {
		for _, value := range []string{`"root"`, `null`} {
			if err := write(alice, workspaces, "w", `{"metadata":{"annotations":{"`+key+`":`+value+`}}}`); err != nil {
				t.Errorf("%s: %v", key, err)
			}
		}
	}
	for _, refused := range []string{
		`{"metadata":{"annotations":{"experimental.tenancy.kcp.io/owner":"{}"}}}`, `{"metadata":{"labels":{"tenancy.kcp.io/phase":"Ready"}}}`,
		`{"metadata":{"annotations":{"authorization.kcp.io/required-groups":"x"}}}`,
		`{"spec":{"type":{"name":"universal"}}}`, `{"spec":{"type":{"path":"root"}}}`,
	} {
		if err := write(alice, workspaces, "w", refused); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", refused, err)
		}
	}
	for _, less := range []string{`{"spec":{"type":null}}`, `{"spec":{"type":{"path":null}}}`, `{"spec":null}`, `{"spec":{"cluster":null,"URL":null}}`, // like manifests without these fields
		`{"metadata":{"labels":null,"annotations":null,"finalizers":null}}`} {
		if err := write(alice, workspaces, "w", less); err != nil {
			t.Errorf("%s: %v", less, err)
		}
	}
	applied := of("w", string(c.name), "web")
	applied.SetAnnotations(map[string]string{"core.kcp.io/shard": "applied"})
	if _, err := alice.any.Resource(workspaces).Apply(t.Context(), "w", applied, metav1.ApplyOptions{FieldManager: "t", Force: true}); err != nil {
		t.Errorf("what is applied again: %v", err)
	}
	check(must(alice.any.Resource(workspaces).Get(t.Context(), "w", metav1.GetOptions{}))(t))
	for _, patch := range []string{
		`{"spec":{"initializers":[]}}`, `{"metadata":{"labels":{"initializer.internal.kcp.io/x":"y"}}}`, `{"metadata":{"annotations":{"internal.tenancy.kcp.io/type":"root:root"}}}`,
	} {
		if err := write(inside, logicalClusters, "cluster", patch); err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", patch, err)
		}
	}
	l := c.inside(ws).own()
	if l.GetAnnotations()["internal.tenancy.kcp.io/type"] != id || len(l.GetLabels()) != 2 {
		t.Errorf("its cluster is %v", l.Object)
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

// New workspaces copy the required groups of their parent.
func TestRequiredGroupsAreInherited(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	patch := []byte(`{"metadata":{"annotations":{"authorization.kcp.io/required-groups":"staff"}}}`)
	must(c.any.Resource(logicalClusters).Patch(t.Context(), "cluster", types.MergePatchType, patch, metav1.PatchOptions{}))(t)
	ws := c.makeWorkspace(workspace("w"))
	for what, o := range map[string]*unstructured.Unstructured{"workspace": ws, "its cluster": c.inside(ws).own()} {
		if got := o.GetAnnotations()["authorization.kcp.io/required-groups"]; got != "staff" {
			t.Errorf("%s requires %q", what, got)
		}
	}
	// Later changes of the parent apply to later workspaces only.
	patch = []byte(`{"metadata":{"annotations":{"authorization.kcp.io/required-groups":"board"}}}`)
	must(c.any.Resource(logicalClusters).Patch(t.Context(), "cluster", types.MergePatchType, patch, metav1.PatchOptions{}))(t)
	later, below := c.makeWorkspace(workspace("later")), c.inside(ws).makeWorkspace(workspace("below"))
	for o, want := range map[*tenant]string{c.inside(ws): "staff", c.inside(later): "board", c.inside(below): "staff"} {
		if got := o.own().GetAnnotations()["authorization.kcp.io/required-groups"]; got != want {
			t.Errorf("%s requires %q, want %q", o.name, got, want)
		}
	}
}
