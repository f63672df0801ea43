package workspaces

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
)

// TestShareNames checks that the bindings of different shares have different and valid names.
func TestShareNames(t *testing.T) {
	seen := map[string]string{}
	for _, role := range []string{"view", "edit", "system:kcp:workspace:access", "access", "workspaces", "system:kcp:tenancy:reader", "a:user:b", "view:user"} {
		for _, name := range []string{"alice", "a:b", "view:user:alice", "https://login.example/x%20y", "..", "Ünal", strings.Repeat("x", 300), "a b", "user:alice"} {
			for _, group := range []bool{false, true} {
				sh := share{role: role, subject: subjectOf(name, group), descendants: true}
				for _, b := range sh.bindings() {
					what := b.RoleRef.Name + "|" + called(b.Subjects[0])
					if other, ok := seen[b.Name]; ok && other != what {
						t.Errorf("%q is the name for %s and for %s", b.Name, other, what)
					}
					seen[b.Name] = what
					if len(b.Name) > longest || strings.ContainsAny(b.Name, "/%") || !strings.HasPrefix(b.Name, "share:") {
						t.Errorf("%q cannot be a name", b.Name)
					}
				}
			}
		}
	}
}

func TestShareSplit(t *testing.T) {
	binding := func(name, role, label string, subjects ...string) rbacv1.ClusterRoleBinding {
		b := rbacv1.ClusterRoleBinding{RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: role}}
		b.Name, b.Labels = name, map[string]string{managedBy: label}
		for _, s := range subjects {
			b.Subjects = append(b.Subjects, subjectOf(s, false))
		}
		return b
	}
	all := []rbacv1.ClusterRoleBinding{
		binding("a", accessRole, sharing, "alice"), binding("v", "view", sharing, "alice"), binding("e", "edit", sharing, "alice"),
		binding("b", accessRole, sharing, "bob"), binding("bv", "view", sharing, "bob"), binding("own", "view", "", "bob"),
		binding("many", "edit", sharing, "bob", "alice"), binding("group", "edit", sharing),
		binding("ds", readerRole, sharing, "dave"), binding("da", accessRole, sharing, "dave"), binding("dv", "view", sharing, "dave"),
		binding("es", readerRole, sharing, "eve"), binding("ea", accessRole, sharing, "eve"),
	}
	all[7].Subjects = []rbacv1.Subject{subjectOf("alice", true)}
	for _, c := range []struct{ user, role, drop, others string }{
		{"alice", "", "v e a", "many"},
		{"alice", "view", "v", "e many"},
		{"alice", "admin", "", "v e many"},
		{"bob", "view", "bv b", "own many"},
		{"bob", "", "bv b", "own many"},
		{"carol", "", "", ""},
		{"dave", "view", "dv ds da", ""},
		{"dave", readerRole, "", "dv"},
		{"eve", readerRole, "es ea", ""},
	} {
		drop, others := share{role: c.role, subject: subjectOf(c.user, false)}.split(all)
		names := func(bs []*rbacv1.ClusterRoleBinding) string {
			var all []string
			for _, b := range bs {
				all = append(all, b.Name)
			}
			return strings.Join(all, " ")
		}
		if diff := cmp.Diff([]string{c.drop, c.others}, []string{names(drop), names(others)}); diff != "" {
			t.Errorf("%s %s: %s", c.user, c.role, diff)
		}
	}
}

func TestHandoutNames(t *testing.T) {
	for as, want := range map[string]string{
		"x": "default/x", "serviceaccount/x": "default/x", "system:serviceaccount:ci:x": "ci/x",
		"": "", "system:serviceaccount:ci": "", "a:b": "", "a/b": "", "serviceaccount/": "", "system:serviceaccount::x": "", "system:serviceaccount:a:b:c": "",
	} {
		h := handout{as: as, ttl: ttl}
		got := ""
		if h.name("") == nil {
			got = h.namespace + "/" + h.account
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", as, got, want)
		}
	}
	h := handout{as: "x", ttl: ttl}
	if err := h.name("dev"); err != nil || h.namespace != "dev" {
		t.Errorf("in a namespace: %+v, %v", h, err)
	}
}
