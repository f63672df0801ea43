package server_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

func TestTypeIsFoundWhereItIsAskedFor(t *testing.T) {
	t.Parallel()
	top := newTenant(t)
	top.defineType("shared", `{}`)
	top.defineType("hidden", `{}`)
	mid := top.binding(top.makeWorkspace(of("mid", "", "shared")))
	mid.defineType("hidden", `{additionalWorkspaceLabels: {from: mid}}`)
	low := mid.binding(mid.makeWorkspace(of("low", "", "shared")))

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
	branch := top.binding(top.makeWorkspace(of("branch", "", "branch")))
	leaf := branch.makeWorkspace(workspace("leaf"))
	if got := text(leaf, "spec", "type", "path") + ":" + text(leaf, "spec", "type", "name"); got != here+":leaf" {
		t.Errorf("a workspace that asks for no type is of %s", got)
	}
	// The default is not inherited: the type leaf has none.
	if ws := branch.binding(leaf).makeWorkspace(workspace("below")); text(ws, "spec", "type", "name") != "universal" {
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
	group := c.binding(c.makeWorkspace(of("group", "", "group")))
	group.makeWorkspace(of("m", "", "member"))
	group.makeWorkspace(of("chief", "", "chief")) // it extends member
	group.refuses(of("p", "", "plain"), fmt.Sprintf("only allows [%s:member] child workspaces, but child type %q only implements [%s:plain]", here, here+":plain", here))
	c.refuses(of("m", "", "member"), "the parent has no type")
	plain := c.binding(c.makeWorkspace(of("plain", "", "plain")))
	plain.refuses(of("chief", "", "chief"), fmt.Sprintf("only allows [%s:group] parent workspaces, but parent type %q only implements [%s:plain]", here, here+":plain", here))
	c.binding(c.makeWorkspace(of("leaf", "", "leaf"))).refuses(workspace("x"), "cannot have any children")
}
