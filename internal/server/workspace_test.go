package server_test

import (
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

	coreapi "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/auth/authz"
)

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
	c.ended("v", clusterOf(v))
}

// A workspace with a False condition is unavailable by its path. It stays available by name,
// for repairs.
func TestWorkspaceIsUnavailableWhileAConditionFails(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	w := c.workspace("w")
	owner, below, guest := w.owner(), w.workspace("below"), w.person("guest")
	w.bind("guest", authz.WorkspaceAccessRole, guest.subject())
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
