package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	corev1alpha1 "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

// mayUse lets a group use a type of the cluster.
func (c *tenant) mayUse(kind, group string) {
	c.t.Helper()
	c.clusterRole("use-"+kind, rbacv1.PolicyRule{Verbs: []string{"use"}, APIGroups: []string{"tenancy.kcp.io"}, Resources: []string{"workspacetypes"}, ResourceNames: []string{kind}})
	c.bind("use-"+kind, "use-"+kind, groupNamed(group))
}

// Without permissions in the type, an initializer acts as the creator of the workspace, in
// that workspace only. It cannot use types and bindings of the creator in other workspaces.
func TestAnInitializerIsTheCreatorInOneWorkspaceAlone(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	victim, evil := newTenant(t), newTenant(t)
	alice, mallory := victim.person("alice"), evil.person("mallory")
	victim.bind("alice", "cluster-admin", alice.subject())
	evil.bind("mallory", "cluster-admin", mallory.subject())
	victim.defineType("private", `{}`)
	id := evil.defineType("web", `{initializer: true}`)
	evil.defineType("open", `{}`)
	evil.mayUse("web", user.AllAuthenticated)
	evil.mayUse("open", user.AllAuthenticated)

	ws := workspace("w")
	_ = unstructured.SetNestedStringMap(ws.Object, map[string]string{"name": "web", "path": string(evil.name)}, "spec", "type") // a map of strings cannot fail
	ws = must(at(t, victim.server, victim.name, alice.info).any.Resource(workspaces).Create(ctx, ws, metav1.CreateOptions{}))(t)
	victim.binding(ws)
	w := at(t, victim.server, clusterOf(ws), alice.info)
	v := evil.initializing(id, mallory.info)
	kube := v.kube(w.name)
	must(kube.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}))(t) // in the workspace they act as alice
	review := must(kube.AuthenticationV1().SelfSubjectReviews().Create(ctx, selfReview(), metav1.CreateOptions{}))(t)
	if u := review.Status.UserInfo; u.Username != alice.info.Name || fmt.Sprint(u.Extra[auth.ScopesKey]) != "[cluster:"+string(w.name)+"]" {
		t.Errorf("the initializer acts as %v", u)
	}

	make := func(name, path, kind string, options metav1.CreateOptions) (*unstructured.Unstructured, error) {
		child := workspace(name)
		_ = unstructured.SetNestedStringMap(child.Object, map[string]string{"name": kind, "path": path}, "spec", "type") // a map of strings cannot fail
		return must(dynamic.NewForConfig(v.config(string(w.name))))(t).Resource(workspaces).Create(ctx, child, options)
	}
	for _, options := range []metav1.CreateOptions{{}, {DryRun: []string{"All"}}} {
		if _, err := make("stolen", string(victim.name), "private", options); !apierrors.IsForbidden(err) {
			t.Errorf("a workspace of the creator's private type: %v", err)
		}
	}
	child := at(t, victim.server, clusterOf(must(make("child", string(evil.name), "open", metav1.CreateOptions{}))(t)), alice.info)
	for name, b := range map[string]*rbacv1.ClusterRoleBinding{
		"a binding that descends":       binding("below", "cluster-admin", below(), mallory.subject()),
		"one to a role that is not yet": binding("later", "no-role", below(), mallory.subject()),
	} {
		if _, err := kube.RbacV1().ClusterRoleBindings().Create(ctx, b, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The child belongs to alice, and mallory may not enter it.
	l := must(child.any.Resource(logicalClusters).Get(ctx, "cluster", metav1.GetOptions{}))(t)
	if extra, found, _ := unstructured.NestedMap(l.Object, "spec", "createdBy", "extra"); found || text(l, "spec", "createdBy", "username") != alice.info.Name {
		t.Errorf("the child was made by %v with %v", text(l, "spec", "createdBy", "username"), extra)
	}
	for _, target := range []*tenant{victim, child} {
		if code, body := mallory.get(target.path("/api/v1/namespaces/default/secrets"), nil); code != http.StatusForbidden {
			t.Errorf("secrets in %s: %d %s", target.name, code, body)
		}
	}
	// Self-reviews do not evaluate other workspaces.
	access := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "use", Group: "tenancy.kcp.io", Resource: "workspacetypes", Name: "private"}}}
	if got := must(kube.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, access, metav1.CreateOptions{}))(t); !got.Status.Allowed {
		t.Error("in the workspace it is alice, who may do everything there")
	}
}

// A forbidden type and a missing type get the same error, without the path of a workspace.
// That is also true for the bases of a user's own type.
func TestNobodyLearnsOfTypesOfOthers(t *testing.T) {
	t.Parallel()
	org := newTenant(t)
	victim := org.workspace("hidden-place")
	victim.defineType("secret", `{extend: {with: [{name: gone}]}}`)
	victim.defineType("fine", `{additionalWorkspaceLabels: {a: b}}`)
	victim.defineType("cycle", `{extend: {with: [{name: cycle}]}}`)
	org.defineType("above", `{}`)
	mine := org.workspace("mine")
	mallory := mine.person("mallory")
	mine.bind("mallory", "cluster-admin", mallory.subject())
	in := at(t, mine.server, mine.name, mallory.info)
	try := func(path, kind string, more map[string]any) string {
		ws := workspace("probe")
		ref := map[string]any{"name": kind}
		if path != "" {
			ref["path"] = path
		}
		_ = unstructured.SetNestedMap(ws.Object, ref, "spec", "type") // a map of strings cannot fail
		for k, v := range more {
			_ = unstructured.SetNestedField(ws.Object, v, "spec", k) // spec is an object
		}
		_, err := in.any.Resource(workspaces).Create(t.Context(), ws, metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s:%s with %v: %v", path, kind, more, err)
		}
		return strings.NewReplacer(`"`+path+":"+kind+`"`, "TYPE", `"`+kind+`"`, "TYPE").Replace(fmt.Sprint(err))
	}
	same := func(what string, texts ...string) {
		t.Helper()
		for _, text := range texts {
			if text != texts[0] || strings.Contains(text, "hidden-place") {
				t.Errorf("%s: answers differ, or tell a path: %q", what, texts)
				return
			}
		}
	}
	for _, more := range []map[string]any{nil, {"location": "not an object"}, {"cluster": "x"}} {
		var texts []string
		for _, path := range []string{string(victim.name), string(org.name) + ":hidden-place", string(cluster.NewName()), string(org.name) + ":nowhere", "system:admin"} {
			for _, kind := range []string{"secret", "fine", "cycle", "nothing"} {
				texts = append(texts, try(path, kind, more))
			}
		}
		same(fmt.Sprint("by path with ", more), texts...)
		same(fmt.Sprint("without a path with ", more), try("", "above", more), try("", "nothing", more))
	}
	// As the base of an own type.
	var texts []string
	for i, base := range []string{"secret", "fine", "cycle", "nothing"} {
		kind := fmt.Sprint("mine", i)
		mine.defineType(kind, `{extend: {with: [{name: `+base+`, path: `+string(victim.name)+`}]}}`)
		texts = append(texts, strings.ReplaceAll(try("", kind, nil), string(victim.name)+":"+base, "BASE"))
	}
	same("as a base", texts...)
	// Users who may use all types of the cluster get the real reason.
	if text := try(string(mine.name), "nothing", nil); !strings.Contains(text, "there is none of that name at that path") {
		t.Errorf("at home: %s", text)
	}
}

// Impersonated rights apply only in the workspace. They do not allow bindings for its
// descendants.
func TestNobodyReachesBelowByImpersonation(t *testing.T) {
	t.Parallel()
	org, team, deep, _ := newOrganization(t)
	boss, mallory := org.person("boss"), org.person("mallory")
	team.bind("boss", "cluster-admin", boss.subject())
	team.clusterRole("impersonates", rbacv1.PolicyRule{Verbs: []string{"impersonate"}, APIGroups: []string{""}, Resources: []string{"users", "groups"}},
		rbacv1.PolicyRule{Verbs: []string{"access"}, NonResourceURLs: []string{"/"}}, may("*", "clusterroles"), may("*", "clusterrolebindings"))
	team.bind("mallory", "impersonates", mallory.subject())
	team.bindBelow("kept", "not-yet", mallory.subject())
	config := team.server.InProcess(string(team.name), mallory.info)
	config.Impersonate.UserName, config.Impersonate.Groups = boss.info.Name, boss.info.Groups[:0]
	asBoss := must(kubernetes.NewForConfig(config))(t).RbacV1()
	if _, err := asBoss.ClusterRoleBindings().Create(t.Context(), binding("here", "view", nil, mallory.subject()), metav1.CreateOptions{}); err != nil {
		t.Fatalf("in the workspace itself: %v", err)
	}
	for what, err := range map[string]error{
		"a binding": second(asBoss.ClusterRoleBindings().Create(t.Context(), binding("below", "cluster-admin", below(), mallory.subject()), metav1.CreateOptions{})),
		"a role": second(asBoss.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "not-yet"},
			Rules: []rbacv1.PolicyRule{may("list", "secrets")}}, metav1.CreateOptions{})),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s that reaches below: %v", what, err)
		}
	}
	mallory.onlyAllowed(t.Context(), []*tenant{deep})
	// The boss may create the binding without impersonation.
	must(boss.kube(team).RbacV1().ClusterRoleBindings().Create(t.Context(), binding("boss-below", "cluster-admin", below(), boss.subject()), metav1.CreateOptions{}))(t)
}

// Users with the RBAC right to update a LogicalCluster can set their own labels, annotations
// and finalizers, but change nothing of the system.
func TestUsersWriteTheirMetadataOfALogicalCluster(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	w := c.workspace("w")
	alice := w.person("alice")
	w.bind("alice", "cluster-admin", alice.subject())
	editor := w.person("editor")
	w.bind("editor", "edit", editor.subject())
	patch := func(u user.Info, kind types.PatchType, body string, subresources ...string) (*unstructured.Unstructured, error) {
		return at(t, w.server, w.name, u).any.Resource(logicalClusters).Patch(t.Context(), "cluster", kind, []byte(body), metav1.PatchOptions{}, subresources...)
	}
	const mine = `{"metadata":{"labels":{"team":"a"},"annotations":{"example.com/b":"c","foo.kcp.io":"d"},"finalizers":["example.com/hold","core.kcp.io/logicalcluster-deletion"]}}`
	for _, u := range []user.Info{alice.info, operator("olga")} {
		l := must(patch(u, types.MergePatchType, mine))(t)
		if l.GetLabels()["team"] != "a" || l.GetAnnotations()["example.com/b"] != "c" || len(l.GetFinalizers()) != 2 {
			t.Errorf("%s wrote %v", u.GetName(), l.Object["metadata"])
		}
		// An applied manifest of these fields removes nothing of the system.
		before := must(w.any.Resource(logicalClusters).Get(t.Context(), "cluster", metav1.GetOptions{}))(t)
		bare := before.DeepCopy()
		bare.SetAnnotations(map[string]string{"example.com/b": "e"})
		bare.SetLabels(nil)
		bare.SetFinalizers(nil)
		after := must(at(t, w.server, w.name, u).any.Resource(logicalClusters).Update(t.Context(), bare, metav1.UpdateOptions{}))(t)
		for _, key := range []string{corev1alpha1.PathAnnotation, corev1alpha1.ShardAnnotation, "internal.tenancy.kcp.io/type"} {
			if after.GetAnnotations()[key] != before.GetAnnotations()[key] {
				t.Errorf("%s: %s is %q", u.GetName(), key, after.GetAnnotations()[key])
			}
		}
		if fmt.Sprint(after.GetFinalizers()) != "["+corev1alpha1.DeletionFinalizer+"]" || after.GetLabels()[corev1alpha1.PhaseLabel] != "Ready" || after.GetAnnotations()["example.com/b"] != "e" {
			t.Errorf("%s replaced it with %v", u.GetName(), after.Object["metadata"])
		}
	}
	if _, err := patch(editor.info, types.MergePatchType, mine); !apierrors.IsForbidden(err) {
		t.Errorf("without rights: %v", err)
	}
	for what, body := range map[string]string{
		"spec":            `{"spec":{"directlyDeletable":true}}`,
		"owner":           `{"spec":{"owner":{"cluster":"root"}}}`,
		"creator":         `{"spec":{"createdBy":{"username":"x"}}}`,
		"owner reference": `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"x","uid":"u"}]}}`,
		"inactive":        `{"metadata":{"annotations":{"core.kcp.io/inactive":"true"}}}`,
		"inactive before": `{"metadata":{"annotations":{"internal.kcp.io/inactive":"true"}}}`,
		"groups":          `{"metadata":{"annotations":{"authorization.kcp.io/required-groups":"x"}}}`,
		"owner's name":    `{"metadata":{"annotations":{"experimental.tenancy.kcp.io/owner":"{}"}}}`,
		"object limit":    `{"metadata":{"annotations":{"core.kcp.io/max-total-objects":"0"}}}`,
		"lock table":      `{"metadata":{"annotations":{"internal.apis.kcp.io/resource-bindings":"{}"}}}`,
		"replication":     `{"metadata":{"annotations":{"internal.kcp.io/replicate":"core.kcp.io"}}}`,
		"force":           `{"metadata":{"annotations":{"core.kcp.io/force-delete":"x"}}}`,
		"a system label":  `{"metadata":{"labels":{"kcp.io/x":"y"}}}`,
	} {
		if _, err := patch(alice.info, types.MergePatchType, body); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Derived labels and computed annotations do not change.
	l := must(patch(alice.info, types.MergePatchType, `{"metadata":{"labels":{"tenancy.kcp.io/phase":"Deleting"},"annotations":{"kcp.io/path":"root:x","kcp.io/cluster":"root"},"finalizers":["kcp.io/has-terminators"]}}`))(t)
	if l.GetLabels()[corev1alpha1.PhaseLabel] != "Ready" || l.GetAnnotations()[corev1alpha1.PathAnnotation] == "root:x" || fmt.Sprint(l.GetFinalizers()) != "["+corev1alpha1.DeletionFinalizer+"]" {
		t.Errorf("metadata %v", l.Object["metadata"])
	}
	for _, u := range []user.Info{alice.info, operator("olga")} {
		for _, body := range []string{`{"status":{"phase":"Deleting"}}`, `{"status":{"initializers":["root:xx"]}}`, `{"status":{"conditions":[]}}`} {
			if _, err := patch(u, types.MergePatchType, body, "status"); !apierrors.IsForbidden(err) {
				t.Errorf("%s writes %s: %v", u.GetName(), body, err)
			}
		}
	}
}

// Operators can remove an initializer that never finishes, and can impersonate users with
// scopes.
func TestOperatorsRemoveInitializersAndImpersonateWithScopes(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	w := c.workspace("w")
	w.become("Initializing", map[string][]string{"initializers": {"root:one", "root:two"}})
	alice := w.person("alice")
	w.bind("alice", "cluster-admin", alice.subject())
	remove := func(u user.Info, left string) error {
		_, err := at(t, w.server, w.name, u).any.Resource(logicalClusters).Patch(t.Context(), "cluster", types.MergePatchType,
			[]byte(`{"status":{"initializers":[`+left+`]}}`), metav1.PatchOptions{}, "status")
		return err
	}
	if err := remove(alice.info, ``); !apierrors.IsForbidden(err) {
		t.Errorf("by the owner: %v", err)
	}
	for _, left := range []string{`"root:one","root:three"`, `"root:two","root:one"`, `"root:one","root:two","root:two"`} {
		if err := remove(operator("olga"), left); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", left, err)
		}
	}
	for _, left := range []string{`"root:two"`, ``} {
		if err := remove(operator("olga"), left); err != nil {
			t.Errorf("%s: %v", left, err)
		}
	}
	c.in(workspaces, "w", "Ready")

	olga := w.person("olga", auth.AdminGroup)
	const secrets = "/api/v1/namespaces/default/secrets"
	scope := func(name string) []string {
		return []string{"Impersonate-User", alice.info.Name, "Impersonate-Extra-Authentication.kcp.io%2Fscopes", "cluster:" + name}
	}
	if code, body := olga.get(w.path(secrets), nil, scope(string(w.name))...); code != http.StatusOK {
		t.Errorf("in the scope: %d %s", code, body)
	}
	if code, body := olga.get(w.path(secrets), nil, scope(string(c.name))...); code != http.StatusForbidden {
		t.Errorf("out of the scope: %d %s", code, body)
	}
	headers := []string{"Impersonate-User", alice.info.Name, "Impersonate-Extra-Authorization.kcp.io%2Fwarrant", `{"user":"x"}`}
	if code, body := olga.get(w.path(secrets), nil, headers...); code != http.StatusForbidden {
		t.Errorf("with a warrant: %d %s", code, body)
	}
}
