package authz

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/auth/authn"
	"github.com/unforked/kcp/internal/auth/authtest"
	"github.com/unforked/kcp/internal/cluster"
)

const (
	allow     = authorizer.DecisionAllow
	deny      = authorizer.DecisionDeny
	noOpinion = authorizer.DecisionNoOpinion
)

// tenants is a world of two workspaces. Alice owns aa, bob owns bb; carol may
// enter aa and reads config maps in its namespace default.
func tenants() memory {
	m := memory{}
	m.at("root").bind("metrics-viewer", MetricsReaderRole, accountSubject("default", "metrics"))
	m.at("aa").bind("workspace-admin", "cluster-admin", userSubject("alice"))
	m.at("bb").bind("workspace-admin", "cluster-admin", userSubject("bob"))
	m.at("aa").bind("enter", WorkspaceAccessRole, userSubject("carol"))
	m.at("aa").bindIn("default", "ClusterRole", "view", userSubject("carol"))
	m.at("aa").bindIn("default", "ClusterRole", "edit", accountSubject("default", "robot"))
	m.at("bb").bindIn("default", "ClusterRole", "view", userSubject("carol"))
	return m
}

func TestAuthorize(t *testing.T) {
	m := tenants()
	m.at("aa").bind("discovery", "system:discovery", groupSubject("auditors"))
	m.at("bb").bind("robots-of-aa", WorkspaceAccessRole, userSubject("system:kcp:serviceaccount:aa:default:robot"))
	m.at("bb").bindIn("default", "ClusterRole", "view", groupSubject("system:cluster:aa"))
	z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists})

	masters, admin := authtest.Person("root", user.SystemPrivilegedGroup), authtest.Person(authn.KcpAdmin, auth.AdminGroup)
	alice, bob, carol, robot := authtest.Person("alice"), authtest.Person("bob"), authtest.Person("carol"), authtest.Account("aa", "default", "robot")
	for name, tt := range map[string]struct {
		in   cluster.Name
		a    authorizer.AttributesRecord
		want authorizer.Decision
	}{
		"owner at home":                         {"aa", resource(alice, "delete", "secrets", "x"), allow},
		"owner elsewhere":                       {"bb", resource(alice, "get", "configmaps", "x"), noOpinion},
		"binding in bb grants nothing in aa":    {"aa", resource(bob, "get", "configmaps", "x"), noOpinion},
		"masters in a workspace":                {"aa", resource(masters, "get", "secrets", "x"), allow},
		"masters in all":                        {cluster.All, resource(masters, "list", "secrets", ""), allow},
		"masters in system:admin":               {cluster.Admin, resource(masters, "list", "leases", "x"), allow},
		"masters in an unknown cluster":         {"zz", resource(masters, "list", "leases", "x"), allow},
		"masters without cluster":               {"", nonResource(masters, "get", "/version"), allow},
		"kcp-admin in a workspace":              {"aa", resource(admin, "get", "secrets", "x"), allow},
		"kcp-admin in all":                      {cluster.All, resource(admin, "list", "secrets", ""), deny},
		"kcp-admin in system:admin":             {cluster.Admin, resource(admin, "list", "leases", "x"), deny},
		"kcp-admin in an unknown cluster":       {"zz", resource(admin, "get", "secrets", "x"), deny},
		"kcp-admin without cluster":             {"", nonResource(admin, "get", "/version"), noOpinion},
		"kcp-admin and metrics":                 {"", nonResource(admin, "get", "/metrics"), allow},
		"guest reads what he is given":          {"aa", resource(carol, "get", "configmaps", "default"), allow},
		"guest writes":                          {"aa", resource(carol, "update", "configmaps", "default"), noOpinion},
		"guest in another namespace":            {"aa", resource(carol, "get", "configmaps", "other"), noOpinion},
		"guest sees discovery":                  {"aa", nonResource(carol, "get", "/api/v1"), allow},
		"rights without access":                 {"bb", resource(carol, "get", "configmaps", "default"), noOpinion},
		"discovery without access":              {"bb", nonResource(carol, "get", "/api"), noOpinion},
		"a binding to discovery is no access":   {"aa", nonResource(authtest.Person("x", "auditors"), "get", "/api"), noOpinion},
		"group that may enter everywhere":       {"bb", nonResource(authtest.Person("x", auth.WorkspaceAccessGroup), "get", "/api"), allow},
		"but has no rights there":               {"bb", resource(authtest.Person("x", auth.WorkspaceAccessGroup), "get", "configmaps", "default"), noOpinion},
		"bootstrapper":                          {"bb", resource(authtest.Person("x", auth.WorkspaceBootstrapperGroup), "create", "configmaps", "x"), allow},
		"logical cluster admin and others":      {"bb", resource(authtest.Person("x", auth.LogicalClusterAdminGroup), "get", "secrets", "x"), noOpinion},
		"anonymous":                             {"aa", nonResource(authtest.Nobody(), "get", "/api"), noOpinion},
		"anonymous and version":                 {"aa", nonResource(authtest.Nobody(), "get", "/version"), noOpinion},
		"anonymous and health":                  {"", nonResource(authtest.Nobody(), "get", "/readyz"), allow},
		"anonymous and health in a workspace":   {"aa", nonResource(authtest.Nobody(), "get", "/healthz"), allow},
		"anonymous and one health check":        {"", nonResource(authtest.Nobody(), "get", "/readyz/etcd"), noOpinion},
		"anonymous and metrics":                 {"", nonResource(authtest.Nobody(), "get", "/metrics"), noOpinion},
		"a resource request with a health path": {"aa", authorizer.AttributesRecord{User: authtest.Nobody(), Verb: "get", Resource: "secrets", Path: "/healthz", ResourceRequest: true}, noOpinion},
		"bare paths":                            {"", nonResource(alice, "get", "/api"), noOpinion},
		"bare resources":                        {"", resource(alice, "get", "secrets", "x"), noOpinion},
		"bare metrics by RBAC of root":          {"", nonResource(authtest.Account("root", "default", "metrics"), "get", "/metrics"), allow},
		"bare metrics and its namesake":         {"", nonResource(authtest.Account("aa", "default", "metrics"), "get", "/metrics"), noOpinion},
		"metrics of a workspace":                {"root", nonResource(authtest.Person("x"), "get", "/metrics"), noOpinion},
		"account at home needs no access":       {"aa", resource(robot, "update", "configmaps", "default"), allow},
		"account beyond its rights":             {"aa", resource(robot, "update", "configmaps", "other"), noOpinion},
		"account sees discovery at home":        {"aa", nonResource(robot, "get", "/apis"), allow},
		"impersonated account":                  {"aa", resource(authtest.Account("", "default", "robot"), "update", "configmaps", "default"), allow},
		"account elsewhere, by its global name": {"bb", resource(robot, "get", "configmaps", "default"), allow},
		"its namesake from another cluster":     {"aa", resource(authtest.Account("bb", "default", "robot"), "update", "configmaps", "default"), noOpinion},
		"namesake sees no discovery":            {"aa", nonResource(authtest.Account("bb", "default", "robot"), "get", "/apis"), noOpinion},
		"account of two clusters": {"aa", resource(&user.DefaultInfo{
			Name: robot.GetName(), Groups: robot.GetGroups(), Extra: map[string][]string{auth.ClusterNameKey: {"aa", "bb"}}}, "update", "configmaps", "default"), noOpinion},
		"account of no cluster at all":  {"aa", resource(authtest.Account("*", "default", "robot"), "update", "configmaps", "default"), noOpinion},
		"account in an unknown cluster": {"zz", resource(authtest.Account("zz", "default", "robot"), "get", "configmaps", "default"), deny},
	} {
		t.Run(name, func(t *testing.T) {
			got, reason, err := z.Authorize(authtest.In(tt.in), tt.a)
			if err != nil || got != tt.want {
				t.Errorf("got %v, %q, %v; want %v", got, reason, err, tt.want)
			}
			if got != allow && reason != Denied {
				t.Errorf("refused with the reason %q, which tells more than %q", reason, Denied)
			}
		})
	}
}

// Owners of a workspace cannot grant paths of the whole process, but paths of their own
// programs.
func TestPathsOfTheProcess(t *testing.T) {
	m := tenants()
	m.at("aa").bind("robot", "cluster-admin", accountSubject("default", "robot"))
	z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists})
	alice, robot, metrics := authtest.Person("alice"), authtest.Account("aa", "default", "robot"), authtest.Account("root", "default", "metrics")
	masters := authtest.Person("x", user.SystemPrivilegedGroup)
	for path, allowed := range map[string]map[string]bool{
		"/metrics":          {"metrics": true},
		"/metrics/slis":     {},
		"//metrics":         {},
		"/debug/pprof/heap": {},
		"/configz":          {},
		"/flagz":            {},
		"/statusz":          {},
		"/logs/x":           {},
		"/version":          {"alice": true, "robot": true},
		"/readyz/etcd":      {"alice": true, "robot": true},
		"/apis/metrics":     {"alice": true, "robot": true},
		"/something/else":   {"alice": true, "robot": true},
	} {
		for name, u := range map[string]user.Info{"alice": alice, "robot": robot, "metrics": metrics, "masters": masters} {
			a := nonResource(u, "get", path)
			ctx := request.WithRequestInfo(authtest.In("aa"), &request.RequestInfo{Path: path, Verb: "get"})
			if d, reason, err := z.Authorize(ctx, a); (d == allow) != (allowed[name] || name == "masters") || err != nil {
				t.Errorf("%s gets %s: %v, %q, %v", name, path, d, reason, err)
			}
			ctx = request.WithRequestInfo(authtest.In("aa"), &request.RequestInfo{IsResourceRequest: true, Verb: "create", Resource: "subjectaccessreviews"})
			if d, reason, err := z.Authorize(ctx, a); (d == allow) != (name != "metrics") || err != nil {
				t.Errorf("a review whether %s may get %s: %v, %q, %v", name, path, d, reason, err)
			}
		}
	}
}

func TestAuthorizeWithoutUser(t *testing.T) {
	z := newAuthorizer(t, Authorization{})
	if d, _, err := z.Authorize(authtest.In("aa"), authorizer.AttributesRecord{Verb: "get", Path: "/healthz"}); err == nil || d == allow {
		t.Errorf("got %v, %v; want an error", d, err)
	}
}

func TestAuthorizationZeroValue(t *testing.T) {
	z := newAuthorizer(t, Authorization{})
	for u, want := range map[user.Info]authorizer.Decision{
		authtest.Person("x", user.SystemPrivilegedGroup): allow,
		authtest.Person(authn.KcpAdmin, auth.AdminGroup): deny,
	} {
		if got, _, err := z.Authorize(authtest.In("aa"), resource(u, "get", "secrets", "x")); got != want || err != nil {
			t.Errorf("%s: got %v, %v; want %v", u.GetName(), got, err, want)
		}
	}
	// Without stored RBAC only the bootstrap policy applies.
	z = newAuthorizer(t, Authorization{Exists: func(context.Context, cluster.Name) bool { return true }})
	for u, want := range map[user.Info]authorizer.Decision{
		authtest.Person(authn.KcpAdmin, auth.AdminGroup): allow,
		authtest.Person("alice"):                         noOpinion,
	} {
		if got, _, err := z.Authorize(authtest.In("aa"), resource(u, "get", "secrets", "x")); got != want || err != nil {
			t.Errorf("%s, nothing stored: got %v, %v; want %v", u.GetName(), got, err, want)
		}
	}
	if _, err := NewAuthorizer(Authorization{AuthorizationOptions: AuthorizationOptions{AlwaysAllowPaths: []string{"/a*b"}}}); err == nil {
		t.Error("a pattern in the middle of a path is accepted")
	}
}

// Tenants may give roles any name. The names do not change the roles of bindings in other
// clusters or in the bootstrap policy.
func TestRoleNamesDoNotShadow(t *testing.T) {
	for _, name := range []string{"system:discovery", "system:basic-user", "system:public-info-viewer", "cluster-admin", "view", WorkspaceAccessRole} {
		t.Run(name, func(t *testing.T) {
			m := tenants()
			m.at("aa").clusterRole(name, everything, rbacv1.PolicyRule{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}})
			z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists})
			for _, tt := range []struct {
				in cluster.Name
				a  authorizer.AttributesRecord
			}{
				{"aa", resource(authtest.Person("dave"), "get", "secrets", "default")},
				{"aa", resource(authtest.Person("carol"), "get", "secrets", "default")},
				{"aa", resource(authtest.Nobody(), "get", "secrets", "default")},
				{"bb", resource(authtest.Person("alice"), "get", "secrets", "default")},
				{"bb", resource(authtest.Person("carol"), "get", "secrets", "default")},
			} {
				if d, reason, _ := z.Authorize(authtest.In(tt.in), tt.a); d == allow {
					t.Errorf("%s in %s: allowed, %s", tt.a.User.GetName(), tt.in, reason)
				}
			}
			if d, _, _ := z.Authorize(authtest.In("aa"), resource(authtest.Person("alice"), "get", "secrets", "default")); d != allow {
				t.Error("the owner lost her rights")
			}
		})
	}
	t.Run("empty cluster-admin", func(t *testing.T) {
		m := tenants()
		m.at("aa").clusterRole("cluster-admin")
		z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists})
		if d, _, _ := z.Authorize(authtest.In("aa"), resource(authtest.Person("alice"), "get", "secrets", "default")); d != allow {
			t.Error("a role in the cluster took away what the bootstrap role grants")
		}
	})
}

func TestSystemAdminAppliesEverywhere(t *testing.T) {
	m := tenants()
	ops := m.at(cluster.Admin)
	ops.clusterRole("ops", enter, everything)
	ops.clusterRole("shared", everything)
	ops.bind("ops", "ops", groupSubject("ops"))
	ops.bind("kube-system", "ops", accountSubject("kube-system", "operator"))
	ops.bind("one-robot", "ops", userSubject("system:kcp:serviceaccount:bb:default:robot"))
	ops.bind("every-account", "shared-get", groupSubject("system:serviceaccounts"))
	ops.clusterRole("shared-get", rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"events"}})
	m.at("aa").bindIn("default", "ClusterRole", "shared", accountSubject("default", "helper"))
	m.at("bb").clusterRole("shared", rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"events"}})
	m.at("bb").bindIn("default", "ClusterRole", "shared", accountSubject("default", "helper"))
	ops.roles["kube-system/keeper"] = &rbacv1.Role{Rules: []rbacv1.PolicyRule{everything}}
	ops.bindIn("kube-system", "Role", "keeper", groupSubject("keepers"))
	m.at("aa").bind("enter-keepers", WorkspaceAccessRole, groupSubject("keepers"))
	m.at("aa").clusterRole("mine", everything)
	ops.bind("mine", "mine", groupSubject(user.AllAuthenticated)) // dangling in system:admin
	z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists})

	for name, tt := range map[string]struct {
		in   cluster.Name
		a    authorizer.AttributesRecord
		want authorizer.Decision
	}{
		"group":                                     {"aa", resource(authtest.Person("x", "ops"), "get", "secrets", "x"), allow},
		"but not in system:admin itself":            {cluster.Admin, resource(authtest.Person("x", "ops"), "get", "leases", "x"), deny},
		"an account there is not a tenant's":        {"aa", resource(authtest.Account("aa", "kube-system", "operator"), "get", "secrets", "x"), noOpinion},
		"nor one without cluster":                   {"aa", resource(authtest.Account("", "kube-system", "operator"), "get", "secrets", "x"), noOpinion},
		"global name at home":                       {"bb", resource(authtest.Account("bb", "default", "robot"), "get", "secrets", "x"), allow},
		"global name elsewhere":                     {"aa", resource(authtest.Account("bb", "default", "robot"), "get", "secrets", "x"), allow},
		"global name, another cluster":              {"aa", resource(authtest.Account("aa", "default", "robot"), "get", "secrets", "x"), noOpinion},
		"all accounts":                              {"aa", resource(authtest.Account("aa", "x", "y"), "get", "events", "x"), allow},
		"namespaced binding":                        {"aa", resource(authtest.Person("x", "keepers"), "get", "secrets", "kube-system"), allow},
		"namespaced binding, elsewhere":             {"aa", resource(authtest.Person("x", "keepers"), "get", "secrets", "default"), noOpinion},
		"role used from a workspace":                {"aa", resource(authtest.Account("aa", "default", "helper"), "get", "secrets", "default"), allow},
		"a tenant's own role of that name":          {"bb", resource(authtest.Account("bb", "default", "helper"), "get", "secrets", "default"), noOpinion},
		"a binding there never finds tenants' role": {"aa", resource(authtest.Person("carol"), "get", "secrets", "x"), noOpinion},
	} {
		t.Run(name, func(t *testing.T) {
			if got, reason, err := z.Authorize(authtest.In(tt.in), tt.a); got != tt.want || err != nil {
				t.Errorf("got %v, %q, %v; want %v", got, reason, err, tt.want)
			}
		})
	}
}

// Operators change the default policy by storing an object of the same name.
func TestSystemAdminReplacesBootstrap(t *testing.T) {
	m := tenants()
	m.at(cluster.Admin).clusterRole("view", rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}})
	m.at(cluster.Admin).bind("system:discovery", "system:discovery", groupSubject("insiders"))
	m.at(cluster.Admin).bind("system:basic-user", "system:basic-user", groupSubject("insiders"))
	z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists})
	carol := authtest.Person("carol")
	for name, tt := range map[string]struct {
		a    authorizer.AttributesRecord
		want authorizer.Decision
	}{
		"new rule":              {resource(carol, "get", "secrets", "default"), allow},
		"old rule":              {resource(carol, "get", "configmaps", "default"), noOpinion},
		"replaced binding":      {nonResource(carol, "get", "/apis"), noOpinion},
		"its new subject":       {nonResource(authtest.Person("carol", "insiders"), "get", "/apis"), allow},
		"a binding that stayed": {nonResource(carol, "get", "/version"), allow},
	} {
		t.Run(name, func(t *testing.T) {
			if got, reason, err := z.Authorize(authtest.In("aa"), tt.a); got != tt.want || err != nil {
				t.Errorf("got %v, %q, %v; want %v", got, reason, err, tt.want)
			}
		})
	}
}

func TestFreshEvidence(t *testing.T) {
	carol := authtest.Person("carol")
	for name, tt := range map[string]struct {
		in     cluster.Name
		a      authorizer.AttributesRecord
		change func(memory) // what the evidence was behind with; nil: it was not
		want   authorizer.Decision
		asked  int
	}{
		"success never waits":        {"aa", resource(carol, "get", "configmaps", "default"), nil, allow, 0},
		"health never waits":         {"aa", nonResource(authtest.Nobody(), "get", "/livez"), nil, allow, 0},
		"masters never wait":         {"zz", resource(authtest.Person("x", user.SystemPrivilegedGroup), "get", "secrets", ""), nil, allow, 0},
		"refusal that cannot change": {cluster.All, resource(carol, "list", "configmaps", ""), nil, deny, 0},
		"system cluster":             {cluster.Admin, resource(carol, "list", "leases", ""), nil, deny, 0},
		"no cluster":                 {"", resource(carol, "list", "leases", ""), nil, noOpinion, 0},
		"refusal, nothing new":       {"bb", resource(carol, "get", "configmaps", "default"), nil, noOpinion, 1},
		"refusal, something else new": {"bb", resource(carol, "get", "configmaps", "default"), func(m memory) {
			m.at("aa").bind("x", "cluster-admin", userSubject("carol"))
		}, noOpinion, 1},
		"new binding": {"bb", resource(carol, "get", "configmaps", "default"), func(m memory) {
			m.at("bb").bind("x", WorkspaceAccessRole, userSubject("carol"))
		}, allow, 1},
		"new cluster": {"cc", resource(carol, "get", "configmaps", "default"), func(m memory) {
			m.at("cc").bind("x", "cluster-admin", userSubject("carol"))
		}, allow, 1},
	} {
		t.Run(name, func(t *testing.T) {
			m, asked := tenants(), 0
			z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists, Fresh: func(context.Context) bool {
				asked++
				if tt.change != nil {
					tt.change(m)
				}
				return tt.change != nil
			}})
			got, _, err := z.Authorize(authtest.In(tt.in), tt.a)
			if got != tt.want || asked != tt.asked || err != nil {
				t.Errorf("got %v after asking %d times, %v; want %v after %d", got, asked, err, tt.want, tt.asked)
			}
		})
	}
}

// The authorizer decides again after evidence was confirmed, and refuses a request if the
// evidence cannot be confirmed.
func TestCurrentEvidence(t *testing.T) {
	carol := authtest.Person("carol")
	in := authtest.In("aa")
	for name, tt := range map[string]struct {
		a      authorizer.AttributesRecord
		waited bool
		err    error
		revoke bool // while it waits
		want   authorizer.Decision
		asked  int
	}{
		"current":                      {resource(carol, "get", "configmaps", "default"), false, nil, false, allow, 1},
		"confirmed, nothing new":       {resource(carol, "get", "configmaps", "default"), true, nil, false, allow, 1},
		"confirmed, and revoked":       {resource(carol, "get", "configmaps", "default"), true, nil, true, noOpinion, 1},
		"cannot be confirmed":          {resource(carol, "get", "configmaps", "default"), true, errors.New("no answer"), false, deny, 1},
		"health needs no evidence":     {nonResource(authtest.Nobody(), "get", "/livez"), true, errors.New("no answer"), false, allow, 0},
		"masters need no evidence":     {resource(authtest.Person("x", user.SystemPrivilegedGroup), "get", "secrets", ""), true, errors.New("no answer"), false, allow, 0},
		"settled contexts are no help": {resource(carol, "get", "configmaps", "default"), true, nil, true, noOpinion, 1},
	} {
		t.Run(name, func(t *testing.T) {
			m, asked := tenants(), 0
			z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists, Current: func(context.Context) (bool, error) {
				asked++
				if tt.revoke {
					m.at("aa").clusterRoleBindings, m.at("aa").roleBindings = nil, nil
				}
				return tt.waited, tt.err
			}})
			ctx := in
			if strings.HasPrefix(name, "settled") {
				ctx = Settled(ctx)
			}
			got, _, err := z.Authorize(ctx, tt.a)
			if got != tt.want || asked != tt.asked || err != nil {
				t.Errorf("got %v after asking %d times, %v; want %v after %d", got, asked, err, tt.want, tt.asked)
			}
		})
	}
}

func TestRecord(t *testing.T) {
	m := tenants()
	var got []Step
	z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists, Record: func(_ context.Context, s []Step) { got = s }})
	for _, tt := range []struct {
		in   cluster.Name
		a    authorizer.AttributesRecord
		want []Step
	}{
		{"aa", resource(authtest.Person("alice"), "get", "configmaps", "x"), []Step{
			{StepContent, allow, ""}, {StepLocal, allow, `RBAC: allowed by ClusterRoleBinding "workspace-admin" of ClusterRole "cluster-admin" to User "alice"`}}},
		{"aa", nonResource(authtest.Person("carol"), "get", "/version"), []Step{
			{StepContent, allow, ""}, {StepBootstrap, allow, `RBAC: allowed by ClusterRoleBinding "system:discovery" of ClusterRole "system:discovery" to Group "system:authenticated"`}}},
		{"aa", resource(authtest.Person("carol"), "get", "secrets", "x"), []Step{
			{StepContent, allow, ""}, {StepLocal, noOpinion, "no RBAC rule allows it"}}},
		{"bb", resource(authtest.Person("carol"), "get", "secrets", "x"), []Step{
			{StepContent, noOpinion, `may not enter the logical cluster: no rule allows the verb "access" on "/"`}}},
		{"zz", resource(authtest.Person("carol"), "get", "secrets", "x"), []Step{{StepContent, deny, "unknown logical cluster"}}},
	} {
		got = nil
		if _, _, err := z.Authorize(authtest.In(tt.in), tt.a); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s in %s: (-want +got)\n%s", tt.a.User.GetName(), tt.in, diff)
		}
	}
}

func BenchmarkAuthorize(b *testing.B) {
	m := tenants()
	for range 20 {
		m.at("aa").bind("other", "view", userSubject("somebody"), groupSubject("some-group"))
	}
	z := newAuthorizer(b, Authorization{RBAC: m, Exists: m.exists})
	for name, a := range map[string]authorizer.AttributesRecord{
		"masters":  resource(authtest.Person("x", user.SystemPrivilegedGroup), "create", "configmaps", "default"),
		"admin":    resource(authtest.Person(authn.KcpAdmin, auth.AdminGroup), "create", "configmaps", "default"),
		"owner":    resource(authtest.Person("alice"), "create", "configmaps", "default"),
		"guest":    resource(authtest.Person("carol"), "get", "configmaps", "default"),
		"account":  resource(authtest.Account("aa", "default", "robot"), "create", "configmaps", "default"),
		"stranger": resource(authtest.Person("mallory"), "get", "configmaps", "default"),
	} {
		b.Run(name, func(b *testing.B) {
			ctx := authtest.In("aa")
			b.ReportAllocs()
			for b.Loop() {
				if d, _, _ := z.Authorize(ctx, a); (d == allow) != (name != "stranger") {
					b.Fatal(d)
				}
			}
		})
	}
}

func TestBootstrap(t *testing.T) {
	b, err := NewBootstrap()
	if err != nil {
		t.Fatal(err)
	}
	for role, want := range map[string]struct {
		verb, resource string
		has            bool
	}{
		"view": {"get", "configmaps", true}, "edit": {"get", "configmaps", true}, "admin": {"get", "configmaps", true},
		"system:aggregate-to-view": {"update", "configmaps", false},
	} {
		r, ok := b.ClusterRole(role)
		if !ok {
			t.Errorf("no role %s", role)
			continue
		}
		a := resource(authtest.Person("x"), want.verb, want.resource, "default")
		if got := allows(r.Rules, a); got != want.has {
			t.Errorf("%s allows %s %s: %v", role, want.verb, want.resource, got)
		}
	}
	admin, _ := b.ClusterRole("admin")
	if a := resource(authtest.Person("x"), "create", "rolebindings", "default"); !allows(admin.Rules, withGroup(a, rbacv1.GroupName)) {
		t.Error("admin cannot give rights to others: it is not aggregated")
	}
	view, _ := b.ClusterRole("view")
	if allows(view.Rules, resource(authtest.Person("x"), "get", "secrets", "default")) || allows(view.Rules, resource(authtest.Person("x"), "update", "configmaps", "default")) {
		t.Error("view has rules of edit")
	}
	for _, binding := range b.ClusterRoleBindings() {
		if _, ok := b.ClusterRole(binding.RoleRef.Name); !ok {
			t.Errorf("binding %s refers to no role", binding.Name)
		}
		for _, s := range binding.Subjects {
			if s.Kind == rbacv1.ServiceAccountKind {
				t.Errorf("binding %s gives rights to %s/%s, which any tenant can create", binding.Name, s.Namespace, s.Name)
			}
		}
	}
	// Two policies must not share memory.
	other, err := NewBootstrap()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(names(b), names(other)); diff != "" {
		t.Error(diff)
	}
	if x, _ := other.ClusterRole("admin"); len(x.Rules) != len(admin.Rules) {
		t.Errorf("admin has %d rules, then %d", len(admin.Rules), len(x.Rules))
	}
}

func names(b *Bootstrap) []string {
	var all []string
	for _, r := range b.ClusterRoles() {
		all = append(all, metav1.Object(r).GetName())
	}
	return all
}
