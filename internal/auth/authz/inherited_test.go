package authz

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/auth/authtest"
	"github.com/unforked/kcp/internal/cluster"
)

// chainOf returns clusters, each below the previous one.
func chainOf(names ...cluster.Name) func(cluster.Name) (Cluster, bool) {
	return func(c cluster.Name) (Cluster, bool) {
		i := slices.Index(names, c)
		switch {
		case c == "loop":
			return Cluster{Phase: core.PhaseReady, Parent: c}, true
		case i < 1:
			return Cluster{Phase: core.PhaseReady}, true
		}
		return Cluster{Phase: core.PhaseReady, Parent: names[i-1]}, true
	}
}

func (s *stored) bindBelow(name, role string, subjects ...rbacv1.Subject) {
	s.bind(name, role, subjects...)
	s.clusterRoleBindings[len(s.clusterRoleBindings)-1].Labels = map[string]string{core.DescendantsLabel: "true"}
}

func TestInheritedBindings(t *testing.T) {
	m := tenants()
	for _, c := range []cluster.Name{"top", "mid", "low", "loop"} {
		m.at(c)
	}
	m.at("top").clusterRole("lists", rbacv1.PolicyRule{Verbs: []string{"list"}, APIGroups: []string{""}, Resources: []string{"secrets"}})
	m.at("mid").clusterRole("lists", everything)
	m.at("top").bindBelow("bob", "lists", userSubject("bob"))
	m.at("top").bindBelow("robots", "view", accountSubject("default", "robot"))
	m.at("mid").bindBelow("dangling", "not-there", userSubject("bob"))
	m.at("mid").bind("plain", "cluster-admin", userSubject("carol"))
	z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists, Cluster: chainOf("top", "mid", "low")})
	for name, tt := range map[string]struct {
		in   cluster.Name
		a    authorizer.AttributesRecord
		want bool
	}{
		"below":                          {"mid", resource(authtest.Person("bob"), "list", "secrets", "x"), true},
		"further below":                  {"low", resource(authtest.Person("bob"), "list", "secrets", "x"), true},
		"where it is it lets nobody in":  {"top", resource(authtest.Person("bob"), "list", "secrets", "x"), false},
		"beside":                         {"bb", resource(authtest.Person("bob"), "delete", "secrets", "x"), true}, // in bob's own cluster
		"beside, another":                {"aa", resource(authtest.Person("bob"), "list", "secrets", "x"), false},
		"by the role of its own cluster": {"low", resource(authtest.Person("bob"), "get", "secrets", "x"), false},
		"it lets in":                     {"low", nonResource(authtest.Person("bob"), "access", "/"), true},
		"somebody else":                  {"low", nonResource(authtest.Person("dave"), "access", "/"), false},
		"a plain binding above":          {"low", resource(authtest.Person("carol"), "list", "secrets", "x"), false},
		"an account of that cluster":     {"low", resource(authtest.Account("top", "default", "robot"), "get", "configmaps", "x"), true},
		"as a token makes it seen there": {"low", resource(auth.Foreign("top", authtest.Account("top", "default", "robot")), "get", "configmaps", "x"), true},
		"its namesake below":             {"low", resource(authtest.Account("low", "default", "robot"), "get", "configmaps", "x"), false},
		"one of no cluster":              {"low", resource(authtest.Account("", "default", "robot"), "get", "configmaps", "x"), false},
		"a user of that name":            {"low", resource(authtest.Person("system:kcp:serviceaccount:top:default:robot"), "get", "configmaps", "x"), false},
		"somebody out of scope":          {"low", resource(authtest.With(authtest.Person("bob"), auth.ScopesKey, "cluster:top"), "list", "secrets", "x"), false},
		"somebody whose scope is there":  {"low", resource(authtest.With(authtest.Person("bob"), auth.ScopesKey, "cluster:low"), "list", "secrets", "x"), true},
		"somebody with a warrant":        {"low", resource(authtest.With(authtest.Person("eve"), auth.WarrantKey, `{"user":"bob"}`), "list", "secrets", "x"), true},
		"a cluster that is above itself": {"loop", resource(authtest.Person("dave"), "list", "secrets", "x"), false},
	} {
		t.Run(name, func(t *testing.T) {
			if d, reason, err := z.Authorize(authtest.In(tt.in), tt.a); (d == allow) != tt.want || err != nil {
				t.Errorf("got %v, %q, %v; want allowed: %v", d, reason, err, tt.want)
			}
		})
	}
	// Inherited rights count in escalation checks.
	rules, err := z.Rules().RulesFor(authtest.In("low"), authtest.Person("bob"), "")
	if err == nil || !allows(rules, resource(authtest.Person("bob"), "list", "secrets", "x")) || !allows(rules, nonResource(authtest.Person("bob"), "access", "/")) {
		t.Errorf("rules of bob: %v, %v; want also that a role is missing", rules, err)
	}
	for name, tt := range map[string]struct {
		in   cluster.Name
		u    user.Info
		role []rbacv1.PolicyRule
		want bool
	}{
		"who may do anything":           {"mid", authtest.Person("x", auth.AdminGroup), []rbacv1.PolicyRule{everything}, true},
		"a plain administrator":         {"mid", authtest.Person("carol"), []rbacv1.PolicyRule{everything}, true},
		"of the cluster below":          {"low", authtest.Person("carol"), []rbacv1.PolicyRule{enter}, false},
		"who has it from above":         {"mid", authtest.Person("bob"), []rbacv1.PolicyRule{{Verbs: []string{"list"}, APIGroups: []string{""}, Resources: []string{"secrets"}}}, true},
		"who has it from here":          {"top", authtest.Person("bob"), []rbacv1.PolicyRule{{Verbs: []string{"list"}, APIGroups: []string{""}, Resources: []string{"secrets"}}}, true},
		"more than they have":           {"mid", authtest.Person("bob"), []rbacv1.PolicyRule{everything}, false},
		"nothing, by who has nothing":   {"mid", authtest.Person("dave"), nil, false},
		"an administrator out of scope": {"mid", authtest.With(authtest.Person("carol"), auth.ScopesKey, "cluster:low"), []rbacv1.PolicyRule{everything}, false},
	} {
		if err := z.ConfirmDescending(authtest.In(tt.in), tt.u, tt.role); (err == nil) != tt.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A request that local bindings allow does not read the tree; other requests do.
func BenchmarkAuthorizeInATree(b *testing.B) {
	m := tenants()
	m.at("top").bindBelow("boss", "cluster-admin", userSubject("boss"))
	z := newAuthorizer(b, Authorization{RBAC: m, Exists: m.exists, Cluster: chainOf("top", "x1", "x2", "x3", "x4", "aa")})
	for name, u := range map[string]user.Info{"owner": authtest.Person("alice"), "from five above": authtest.Person("boss"), "stranger": authtest.Person("mallory")} {
		b.Run(name, func(b *testing.B) {
			ctx, a := authtest.In("aa"), resource(u, "create", "configmaps", "default")
			b.ReportAllocs()
			for b.Loop() {
				if d, _, _ := z.Authorize(ctx, a); (d == allow) != (name != "stranger") {
					b.Fatal(d)
				}
			}
		})
	}
}
