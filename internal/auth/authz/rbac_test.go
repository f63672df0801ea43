package authz

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	authorizationapi "k8s.io/kubernetes/pkg/apis/authorization"
	"k8s.io/kubernetes/pkg/registry/authorization/selfsubjectrulesreview"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/auth/authn"
	"github.com/unforked/kcp/internal/auth/authtest"
	"github.com/unforked/kcp/internal/cluster"
)

func allows(rules []rbacv1.PolicyRule, a authorizer.Attributes) bool {
	return rbac.RulesAllow(a, rules...)
}

func withGroup(a authorizer.AttributesRecord, group string) authorizer.AttributesRecord {
	a.APIGroup = group
	return a
}

// The escalation checks of the RBAC registries know bootstrap roles. Rights in one cluster do not
// allow users to grant them in another.
func TestEscalation(t *testing.T) {
	m := tenants()
	m.at("bb").bindIn("default", "ClusterRole", "admin", userSubject("carol"))
	z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists})
	for name, tt := range map[string]struct {
		in        cluster.Name
		u         user.Info
		role      string
		namespace string
		ok        bool
	}{
		"owner grants all":                 {"aa", authtest.Person("alice"), "cluster-admin", "", true},
		"owner elsewhere":                  {"bb", authtest.Person("alice"), "view", "default", false},
		"admin of a namespace grants view": {"bb", authtest.Person("carol"), "view", "default", true},
		"admin of a namespace elsewhere":   {"bb", authtest.Person("carol"), "view", "other", false},
		"admin of a namespace grants all":  {"bb", authtest.Person("carol"), "cluster-admin", "default", false},
		"reader grants what she reads":     {"aa", authtest.Person("carol"), "view", "default", true},
		"reader grants more":               {"aa", authtest.Person("carol"), "edit", "default", false},
		"account at home":                  {"aa", authtest.Account("aa", "default", "robot"), "view", "default", true},
		"its namesake":                     {"aa", authtest.Account("bb", "default", "robot"), "view", "default", false},
		"kcp-admin":                        {"bb", authtest.Person(authn.KcpAdmin, auth.AdminGroup), "cluster-admin", "", true},
		"nobody grants in all clusters":    {cluster.All, authtest.Person(authn.KcpAdmin, auth.AdminGroup), "view", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := request.WithNamespace(request.WithUser(authtest.In(tt.in), tt.u), tt.namespace)
			role, _ := z.Bootstrap().ClusterRole(tt.role)
			if err := validation.ConfirmNoEscalation(ctx, z.Rules(), role.Rules); (err == nil) != tt.ok {
				t.Errorf("got %v, want ok=%v", err, tt.ok)
			}
		})
	}
}

func TestRoleReferences(t *testing.T) {
	m := tenants()
	m.at("aa").clusterRole("mine", everything)
	m.at("aa").clusterRole("cluster-admin")
	m.at("aa").roles["default/local"] = &rbacv1.Role{Rules: []rbacv1.PolicyRule{everything}}
	z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists})
	for name, tt := range map[string]struct {
		in         cluster.Name
		kind, role string
		rules      int // -1 for an error
	}{
		"bootstrap role":            {"bb", "ClusterRole", WorkspaceAccessRole, 1},
		"its name in the cluster":   {"aa", "ClusterRole", "cluster-admin", 2},
		"own role":                  {"aa", "ClusterRole", "mine", 1},
		"role of another cluster":   {"bb", "ClusterRole", "mine", -1},
		"namespaced":                {"aa", "Role", "local", 1},
		"namespaced, other cluster": {"bb", "Role", "local", -1},
		"no such role":              {"aa", "ClusterRole", "nope", -1},
		"all clusters":              {cluster.All, "ClusterRole", "view", -1},
		"no cluster":                {"", "Role", "local", -1},
	} {
		t.Run(name, func(t *testing.T) {
			rules, err := z.Rules().GetRoleReferenceRules(authtest.In(tt.in), rbacv1.RoleRef{Kind: tt.kind, Name: tt.role}, "default")
			if (err != nil) != (tt.rules < 0) || err == nil && len(rules) != tt.rules {
				t.Errorf("got %d rules, %v; want %d", len(rules), err, tt.rules)
			}
		})
	}
}

// SelfSubjectRulesReview lists bootstrap, system:admin and own rules.
func TestSelfSubjectRulesReview(t *testing.T) {
	m := tenants()
	m.at(cluster.Admin).clusterRole("ops", rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"ops"}, Resources: []string{"ops"}})
	m.at(cluster.Admin).bind("ops", "ops", userSubject("carol"))
	z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists})
	review := func(ctxCluster cluster.Name, u user.Info) authorizationapi.SubjectRulesReviewStatus {
		t.Helper()
		out, err := selfsubjectrulesreview.NewREST(z).Create(request.WithUser(authtest.In(ctxCluster), u),
			&authorizationapi.SelfSubjectRulesReview{Spec: authorizationapi.SelfSubjectRulesReviewSpec{Namespace: "default"}}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return out.(*authorizationapi.SelfSubjectRulesReview).Status
	}
	has := func(s authorizationapi.SubjectRulesReviewStatus, resource string) bool {
		for _, r := range s.ResourceRules {
			for _, x := range r.Resources {
				if x == resource {
					return true
				}
			}
		}
		return false
	}
	got := review("aa", authtest.Person("carol"))
	if !has(got, "configmaps") || !has(got, "selfsubjectaccessreviews") || !has(got, "ops") || len(got.NonResourceRules) == 0 {
		t.Errorf("rules are missing: %+v", got)
	}
	if got := review("aa", authtest.Person("dave")); has(got, "configmaps") || has(got, "ops") {
		t.Errorf("rules of somebody else: %+v", got)
	}
	if got := review(cluster.Admin, authtest.Person("carol")); len(got.ResourceRules)+len(got.NonResourceRules) > 0 {
		t.Errorf("rules in a system cluster: %+v", got)
	}
	if got := review(cluster.Admin, authtest.Person("x", user.SystemPrivilegedGroup)); !has(got, "*") {
		t.Errorf("system:masters miss rules: %+v", got)
	}
	if got := review(cluster.All, authtest.Person("carol")); len(got.ResourceRules) > 0 || got.EvaluationError == "" {
		t.Errorf("rules in all clusters: %+v", got)
	}
}
