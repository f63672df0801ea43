package auth

import (
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
)

// with returns a copy of a user with additional extra keys.
func with(u user.Info, key string, values ...string) user.Info {
	extra := map[string][]string{key: values}
	for k, v := range u.GetExtra() {
		extra[k] = v
	}
	return &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra}
}

func warrant(t *testing.T, u user.Info) string {
	t.Helper()
	text, err := Warrant{User: u.GetName(), Groups: u.GetGroups(), UID: u.GetUID(), Extra: u.GetExtra()}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestEffectiveUsers(t *testing.T) {
	alice, robot := person("alice"), account("aa", "ns", "robot")
	for name, tt := range map[string]struct {
		u    user.Info
		want []string // in cluster aa
	}{
		"nobody special":        {alice, []string{"alice [system:authenticated]"}},
		"in scope":              {with(alice, ScopesKey, "cluster:aa"), []string{"alice [system:authenticated]"}},
		"in one of them":        {with(alice, ScopesKey, "cluster:bb,cluster:aa"), []string{"alice [system:authenticated]"}},
		"in all of them":        {with(alice, ScopesKey, "cluster:bb,cluster:aa", "cluster:aa"), []string{"alice [system:authenticated]"}},
		"in not all of them":    {with(alice, ScopesKey, "cluster:aa", "cluster:bb"), []string{"system:anonymous [system:authenticated system:cluster:aa system:cluster:bb]"}},
		"out of scope":          {with(alice, ScopesKey, "cluster:bb"), []string{"system:anonymous [system:authenticated system:cluster:bb]"}},
		"anonymous out of it":   {with(nobody(), ScopesKey, "cluster:bb"), []string{"system:anonymous [system:unauthenticated system:cluster:bb]"}},
		"a scope that is empty": {with(alice, ScopesKey, ""), []string{"system:anonymous [system:authenticated]"}},
		"of another kind":       {with(alice, ScopesKey, "aa,user:aa,cluster:*"), []string{"system:anonymous [system:authenticated]"}},
		"with a space":          {with(alice, ScopesKey, "cluster: aa"), []string{"system:anonymous [system:authenticated]"}},
		"no scopes at all":      {with(alice, ScopesKey), []string{"alice [system:authenticated]"}},
		"a warrant":             {with(alice, WarrantKey, warrant(t, person("bob", "devs"))), []string{"alice [system:authenticated]", "bob [devs system:authenticated]"}},
		"a warrant of a warrant": {with(alice, WarrantKey, warrant(t, with(person("bob"), WarrantKey, `{"user":"carol"}`))),
			[]string{"alice [system:authenticated]", "bob [system:authenticated]", "carol []"}},
		"a warrant with a scope":       {with(alice, WarrantKey, warrant(t, with(person("bob"), ScopesKey, "cluster:bb"))), []string{"alice [system:authenticated]", "system:anonymous [system:authenticated system:cluster:bb]"}},
		"out of scope with a warrant":  {with(with(alice, ScopesKey, "cluster:bb"), WarrantKey, `{"user":"bob"}`), []string{"system:anonymous [system:authenticated system:cluster:bb]", "bob []"}},
		"malformed warrants":           {with(alice, WarrantKey, "", "x", "[]", `{"user":1}`, `{"user":"bob"`), []string{"alice [system:authenticated]"}},
		"an account":                   {robot, []string{"system:serviceaccount:ns:robot [system:serviceaccounts system:serviceaccounts:ns system:authenticated]", "system:kcp:serviceaccount:aa:ns:robot [system:authenticated system:cluster:aa]"}},
		"a warrant for an account":     {with(alice, WarrantKey, `{"user":"system:serviceaccount:ns:robot","extra":{"authentication.kcp.io/cluster-name":["bb"]}}`), []string{"alice [system:authenticated]", "system:kcp:serviceaccount:bb:ns:robot [system:authenticated system:cluster:bb]"}},
		"for one of no cluster":        {with(alice, WarrantKey, `{"user":"system:serviceaccount:ns:robot"}`), []string{"alice [system:authenticated]"}},
		"for one of two":               {with(alice, WarrantKey, `{"user":"system:serviceaccount:ns:robot","extra":{"authentication.kcp.io/cluster-name":["aa","bb"]}}`), []string{"alice [system:authenticated]"}},
		"an account that is elsewhere": {with(account("bb", "ns", "robot"), ScopesKey, "cluster:bb"), []string{"system:anonymous [system:authenticated system:cluster:bb]"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			effective("aa", tt.u, func(e user.Info) bool {
				e = seenFrom("aa", e)
				got = append(got, e.GetName()+" ["+strings.Join(e.GetGroups(), " ")+"]")
				return true
			})
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The rules of a service account, which has two names in bindings, are listed once.
func TestRulesOfAnAccountAreListedOnce(t *testing.T) {
	m := tenants()
	m.at("aa").bind("home", "view", accountSubject("ns", "robot"))
	m.at("aa").bind("away", "view", userSubject("system:kcp:serviceaccount:aa:ns:robot"))
	z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists})
	count := func(u user.Info) (rules, paths int) {
		r, p, _, err := z.RulesFor(in("aa"), u, "default")
		if err != nil {
			t.Fatal(err)
		}
		return len(r), len(p)
	}
	nobodyRules, nobodyPaths := count(person("nobody"))
	view, _ := z.Bootstrap().ClusterRole("view")
	about := 0
	for _, r := range view.Rules {
		if len(r.Resources) > 0 {
			about++
		}
	}
	// Each of its two bindings counts.
	if rules, paths := count(account("aa", "ns", "robot")); rules < nobodyRules || rules > nobodyRules+2*about+1 || paths > nobodyPaths+1 {
		t.Errorf("%d rules and %d paths; everybody has %d and %d, the role %d", rules, paths, nobodyRules, nobodyPaths, about)
	}
}

// Rights of users that are limited to some clusters do not apply below: neither those of a user
// with scopes, nor those of a warrant with scopes.
func TestUnboundedUsers(t *testing.T) {
	alice := person("alice")
	scoped := with(person("bob"), ScopesKey, "cluster:aa")
	for name, tt := range map[string]struct {
		u    user.Info
		want []string
	}{
		"nobody special":             {alice, []string{"alice"}},
		"scoped":                     {scoped, []string{"system:anonymous"}},
		"a warrant":                  {with(alice, WarrantKey, warrant(t, person("bob"))), []string{"alice", "bob"}},
		"a warrant with scopes":      {with(alice, WarrantKey, warrant(t, scoped)), []string{"alice"}},
		"scoped, with a warrant":     {with(scoped, WarrantKey, warrant(t, alice)), []string{"system:anonymous", "alice"}},
		"one in another":             {with(alice, WarrantKey, warrant(t, with(person("carol"), WarrantKey, warrant(t, scoped)))), []string{"alice", "carol"}},
		"a malformed warrant":        {with(alice, WarrantKey, "x"), []string{"alice"}},
		"masters with a scope":       {with(person("x", user.SystemPrivilegedGroup), ScopesKey, "cluster:aa"), []string{"system:anonymous"}},
		"an account and its cluster": {account("aa", "ns", "robot"), []string{"system:serviceaccount:ns:robot", "system:kcp:serviceaccount:aa:ns:robot"}},
	} {
		var got []string
		effective("aa", unbounded(tt.u), func(e user.Info) bool { got = append(got, e.GetName()); return true })
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// The number and the nesting of warrants are limited.
func TestEffectiveUsersAreBounded(t *testing.T) {
	deep := person("alice")
	for range 8 {
		w := warrant(t, deep)
		deep = with(person("alice"), WarrantKey, w, w, w)
	}
	n := 0
	effective("aa", deep, func(user.Info) bool { n++; return true })
	if n > maxEffective {
		t.Errorf("%d users", n)
	}
}

// Scopes and warrants apply in RBAC, in escalation checks, in lists of rules, and to members of
// privileged groups.
func TestAuthorizeScopesAndWarrants(t *testing.T) {
	m := tenants()
	m.at("aa").bind("strangers", WorkspaceAccessRole, groupSubject("system:cluster:bb"))
	m.at("aa").clusterRole("lists", rbacv1.PolicyRule{Verbs: []string{"list"}, APIGroups: []string{""}, Resources: []string{"events"}})
	m.at("aa").bind("events", "lists", groupSubject("system:cluster:bb"))
	z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists})
	alice, carol, masters := person("alice"), person("carol"), person("x", user.SystemPrivilegedGroup)
	for name, tt := range map[string]struct {
		in   cluster.Name
		a    authorizer.AttributesRecord
		want bool
	}{
		"in scope":                              {"aa", resource(with(alice, ScopesKey, "cluster:aa"), "get", "secrets", "x"), true},
		"out of scope":                          {"aa", resource(with(alice, ScopesKey, "cluster:bb"), "get", "secrets", "x"), false},
		"out of scope, with what is for those":  {"aa", resource(with(alice, ScopesKey, "cluster:bb"), "list", "events", "x"), true},
		"a warrant lets in and allows":          {"aa", resource(with(person("eve"), WarrantKey, warrant(t, alice)), "get", "secrets", "x"), true},
		"it adds to what he has":                {"bb", resource(with(carol, WarrantKey, `{"user":"x","groups":["`+WorkspaceAccessGroup+`"]}`), "get", "configmaps", "default"), true},
		"but not elsewhere":                     {"bb", resource(with(person("eve"), WarrantKey, warrant(t, alice)), "get", "secrets", "x"), false},
		"a warrant for kcp-admin":               {"bb", resource(with(person("eve"), WarrantKey, warrant(t, person("y", AdminGroup))), "get", "secrets", "x"), true},
		"a warrant makes nobody privileged":     {cluster.Admin, resource(with(person("eve"), WarrantKey, warrant(t, masters)), "get", "leases", "x"), false},
		"privileged in scope":                   {"aa", resource(with(masters, ScopesKey, "cluster:aa"), "get", "secrets", "x"), true},
		"privileged out of scope":               {"bb", resource(with(masters, ScopesKey, "cluster:aa"), "get", "secrets", "x"), false},
		"privileged in all, but for a scope":    {cluster.All, resource(with(masters, ScopesKey, "cluster:*"), "list", "secrets", ""), false},
		"privileged nowhere, but for a scope":   {"", nonResource(with(masters, ScopesKey, "cluster:"), "get", "/version"), false},
		"a warrant for an account of bb in bb":  {"bb", resource(with(person("eve"), WarrantKey, warrant(t, account("bb", "default", "x"))), "get", "secrets", "x"), false},
		"a warrant for an account of aa, in aa": {"aa", resource(with(person("eve"), WarrantKey, warrant(t, account("aa", "default", "robot"))), "update", "configmaps", "default"), true},
	} {
		t.Run(name, func(t *testing.T) {
			if d, _, err := z.Authorize(in(tt.in), tt.a); (d == allow) != tt.want || err != nil {
				t.Errorf("got %v, %v; want allowed: %v", d, err, tt.want)
			}
		})
	}
	held := func(u user.Info) int {
		rules, err := z.Rules().RulesFor(in("aa"), u, "default")
		if err != nil {
			t.Fatal(err)
		}
		return len(rules)
	}
	if plain, warranted, scoped := held(person("eve")), held(with(person("eve"), WarrantKey, warrant(t, alice))), held(with(alice, ScopesKey, "cluster:cc")); warranted <= plain || scoped > plain {
		t.Errorf("rules: %d, with a warrant %d, out of scope %d", plain, warranted, scoped)
	}
}

// Scopes never add rights: a request that is allowed with scopes is also allowed without them, or
// for a user out of scope.
func TestScopesOnlyTakeAway(t *testing.T) {
	m := tenants()
	z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists})
	words := []string{"cluster:aa", "cluster:bb", "aa", "", ",", "cluster:", "cluster:*", " cluster:aa", "cluster:aa,cluster:bb"}
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var scopes []string
		for range 1 + r.IntN(3) {
			var alternatives []string
			for range 1 + r.IntN(3) {
				alternatives = append(alternatives, words[r.IntN(len(words))])
			}
			scopes = append(scopes, strings.Join(alternatives, ","))
		}
		u := []user.Info{person("alice"), person("bob"), person("x", user.SystemPrivilegedGroup), account("aa", "default", "robot")}[r.IntN(4)]
		c := []cluster.Name{"aa", "bb", cluster.All, cluster.Admin, ""}[r.IntN(5)]
		scoped, _, _ := z.Authorize(in(c), resource(with(u, ScopesKey, scopes...), "update", "configmaps", "default"))
		plain, _, _ := z.Authorize(in(c), resource(u, "update", "configmaps", "default"))
		if scoped == allow && (plain != allow || !slices.ContainsFunc(scopes, func(s string) bool { return strings.Contains(s, "cluster:"+string(c)) })) {
			t.Fatalf("%s with scopes %q in %q is allowed", u.GetName(), scopes, c)
		}
	}
}

func TestRequiredGroups(t *testing.T) {
	m := tenants()
	m.at("aa").bind("everybody", "cluster-admin", groupSubject(user.AllAuthenticated))
	for name, tt := range map[string]struct {
		required string
		u        user.Info
		want     bool
	}{
		"none":                        {"", person("dave"), true},
		"a member":                    {"staff", person("dave", "staff"), true},
		"no member":                   {"staff", person("dave", "devs"), false},
		"not even the owner":          {"staff", person("alice"), false},
		"both":                        {"staff,devs", person("dave", "devs", "staff"), true},
		"one of both":                 {"staff,devs", person("dave", "devs"), false},
		"the other alternative":       {"staff,devs;ops", person("dave", "ops"), true},
		"an alternative that is none": {"staff;", person("dave"), false},
		"only separators":             {";,;", person("dave", ""), false},
		"kcp-admin":                   {"staff", person("x", AdminGroup), true},
		"bootstrapper":                {"staff", person("x", WorkspaceBootstrapperGroup), true},
		"logical cluster admin":       {"staff", person("x", LogicalClusterAdminGroup), true},
		"external one":                {"staff", person("x", ExternalLogicalClusterAdminGroup), true},
		"masters":                     {"staff", person("x", user.SystemPrivilegedGroup), true},
		"an account":                  {"staff", account("aa", "default", "robot"), true},
		"one from elsewhere":          {"staff", account("bb", "default", "robot"), true},
		"a warrant of a member":       {"staff", with(person("dave"), WarrantKey, `{"user":"eve","groups":["staff"]}`), true},
		"a member out of scope":       {"staff", with(person("dave", "staff"), ScopesKey, "cluster:bb"), false},
		"anonymous":                   {"staff", nobody(), false},
	} {
		t.Run(name, func(t *testing.T) {
			z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists, Cluster: func(cluster.Name) (Cluster, bool) {
				return Cluster{Phase: core.PhaseReady, RequiredGroups: tt.required}, true
			}})
			if d, _, err := z.Authorize(in("aa"), resource(tt.u, "get", "configmaps", "default")); (d == allow) != tt.want || err != nil {
				t.Errorf("got %v, %v; want allowed: %v", d, err, tt.want)
			}
			// A deep review uses only RBAC.
			if d, _, _ := z.Authorize(Deep(in("aa")), resource(tt.u, "get", "configmaps", "default")); (d == allow) != (name != "anonymous" && name != "nobody") {
				t.Errorf("a deep review: %v", d)
			}
		})
	}
	for groups, ok := range map[string]bool{"": true, "a": true, "a,b;c": true, "a;": false, ",": false, "a, b": false, " a": false, "a;;b": false} {
		if err := CheckRequiredGroups(groups); (err == nil) != ok {
			t.Errorf("%q: %v", groups, err)
		}
	}
}

func TestPhases(t *testing.T) {
	m := tenants()
	for p, want := range map[core.Phase]bool{
		core.PhaseScheduling: false, core.PhaseUnavailable: false, core.PhaseInitializing: true, core.PhaseReady: true,
		core.PhaseInactive: true, core.PhaseTerminating: true, core.PhaseDeleting: true,
	} {
		z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists, Cluster: func(cluster.Name) (Cluster, bool) { return Cluster{Phase: p}, true }})
		if d, _, _ := z.Authorize(in("aa"), resource(person("alice"), "get", "secrets", "x")); (d == allow) != want {
			t.Errorf("in phase %s: %v", p, d)
		}
		lc := resource(person("x", LogicalClusterAdminGroup), "update", "logicalclusters", "")
		if d, _, _ := z.Authorize(in("aa"), withGroup(lc, "core.kcp.io")); d != allow {
			t.Errorf("logical cluster admin in phase %s: %v", p, d)
		}
	}
	z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists, Cluster: func(cluster.Name) (Cluster, bool) { return Cluster{}, false }})
	if d, _, _ := z.Authorize(in("aa"), resource(person("alice"), "get", "secrets", "x")); d != deny {
		t.Errorf("without a LogicalCluster: %v", d)
	}
}

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
		"below":                          {"mid", resource(person("bob"), "list", "secrets", "x"), true},
		"further below":                  {"low", resource(person("bob"), "list", "secrets", "x"), true},
		"where it is it lets nobody in":  {"top", resource(person("bob"), "list", "secrets", "x"), false},
		"beside":                         {"bb", resource(person("bob"), "delete", "secrets", "x"), true}, // in bob's own cluster
		"beside, another":                {"aa", resource(person("bob"), "list", "secrets", "x"), false},
		"by the role of its own cluster": {"low", resource(person("bob"), "get", "secrets", "x"), false},
		"it lets in":                     {"low", nonResource(person("bob"), "access", "/"), true},
		"somebody else":                  {"low", nonResource(person("dave"), "access", "/"), false},
		"a plain binding above":          {"low", resource(person("carol"), "list", "secrets", "x"), false},
		"an account of that cluster":     {"low", resource(account("top", "default", "robot"), "get", "configmaps", "x"), true},
		"as a token makes it seen there": {"low", resource(foreign("top", account("top", "default", "robot")), "get", "configmaps", "x"), true},
		"its namesake below":             {"low", resource(account("low", "default", "robot"), "get", "configmaps", "x"), false},
		"one of no cluster":              {"low", resource(account("", "default", "robot"), "get", "configmaps", "x"), false},
		"a user of that name":            {"low", resource(person("system:kcp:serviceaccount:top:default:robot"), "get", "configmaps", "x"), false},
		"somebody out of scope":          {"low", resource(with(person("bob"), ScopesKey, "cluster:top"), "list", "secrets", "x"), false},
		"somebody whose scope is there":  {"low", resource(with(person("bob"), ScopesKey, "cluster:low"), "list", "secrets", "x"), true},
		"somebody with a warrant":        {"low", resource(with(person("eve"), WarrantKey, `{"user":"bob"}`), "list", "secrets", "x"), true},
		"a cluster that is above itself": {"loop", resource(person("dave"), "list", "secrets", "x"), false},
	} {
		t.Run(name, func(t *testing.T) {
			if d, reason, err := z.Authorize(in(tt.in), tt.a); (d == allow) != tt.want || err != nil {
				t.Errorf("got %v, %q, %v; want allowed: %v", d, reason, err, tt.want)
			}
		})
	}
	// Inherited rights count in escalation checks.
	rules, err := z.Rules().RulesFor(in("low"), person("bob"), "")
	if err == nil || !allows(rules, resource(person("bob"), "list", "secrets", "x")) || !allows(rules, nonResource(person("bob"), "access", "/")) {
		t.Errorf("rules of bob: %v, %v; want also that a role is missing", rules, err)
	}
	for name, tt := range map[string]struct {
		in   cluster.Name
		u    user.Info
		role []rbacv1.PolicyRule
		want bool
	}{
		"who may do anything":           {"mid", person("x", AdminGroup), []rbacv1.PolicyRule{everything}, true},
		"a plain administrator":         {"mid", person("carol"), []rbacv1.PolicyRule{everything}, true},
		"of the cluster below":          {"low", person("carol"), []rbacv1.PolicyRule{enter}, false},
		"who has it from above":         {"mid", person("bob"), []rbacv1.PolicyRule{{Verbs: []string{"list"}, APIGroups: []string{""}, Resources: []string{"secrets"}}}, true},
		"who has it from here":          {"top", person("bob"), []rbacv1.PolicyRule{{Verbs: []string{"list"}, APIGroups: []string{""}, Resources: []string{"secrets"}}}, true},
		"more than he has":              {"mid", person("bob"), []rbacv1.PolicyRule{everything}, false},
		"nothing, by who has nothing":   {"mid", person("dave"), nil, false},
		"an administrator out of scope": {"mid", with(person("carol"), ScopesKey, "cluster:low"), []rbacv1.PolicyRule{everything}, false},
	} {
		if err := z.ConfirmDescending(in(tt.in), tt.u, tt.role); (err == nil) != tt.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Impersonated users have their rights only in the cluster that allowed the impersonation. Groups
// and extra keys that give rights in other ways cannot be impersonated.
func TestImpersonationIsScoped(t *testing.T) {
	m := tenants()
	z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists})
	var arrived user.Info
	end := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { arrived, _ = request.UserFrom(r.Context()) })
	chain := WithImpersonationLimits(WithImpersonation(end, z, legacyscheme.Codecs), legacyscheme.Codecs)
	info := &request.RequestInfo{IsResourceRequest: true, Verb: "get", APIVersion: "v1", Resource: "configmaps", Namespace: "default", Name: "x"}
	masters := person("root", user.SystemPrivilegedGroup)
	for name, tt := range map[string]struct {
		u      user.Info
		header string // of an extra
		want   []string
		code   int
	}{
		"by the owner":                {person("alice"), "", []string{"cluster:aa"}, 200},
		"by one in a scope":           {with(person("alice"), ScopesKey, "cluster:aa,cluster:bb"), "", []string{"cluster:aa,cluster:bb", "cluster:aa"}, 200},
		"by one out of scope":         {with(person("alice"), ScopesKey, "cluster:bb"), "", nil, 403},
		"by masters":                  {masters, "", nil, 200},
		"by masters in a scope":       {with(masters, ScopesKey, "cluster:aa"), "", []string{"cluster:aa"}, 200},
		"masters choose scopes":       {masters, "Impersonate-Extra-Authentication.kcp.io%2fscopes", []string{"x"}, 200},
		"the owner does not":          {person("alice"), "Impersonate-Extra-Authentication.kcp.io%2fscopes", nil, 403},
		"nor gives a warrant":         {person("alice"), "Impersonate-Extra-Authorization.kcp.io%2Fwarrant", nil, 403},
		"nor the cluster of accounts": {person("alice"), "Impersonate-Extra-Authentication.kcp.io%2fcluster-Name", nil, 403},
		"nor an original name":        {person("alice"), "Impersonate-Extra-Experimental.authorization.kcp.io%2foriginal-Username", nil, 403},
		"anything else":               {person("alice"), "Impersonate-Extra-Example.com%2fteam", []string{"cluster:aa"}, 200},
	} {
		t.Run(name, func(t *testing.T) {
			arrived = nil
			r := httptest.NewRequest(http.MethodGet, "/api/v1/namespaces/default/configmaps/x", nil)
			r.Header.Set("Impersonate-User", "bob")
			if tt.header != "" {
				r.Header[tt.header] = []string{"x"}
			}
			w := httptest.NewRecorder()
			chain.ServeHTTP(w, r.WithContext(request.WithRequestInfo(request.WithUser(in("aa"), tt.u), info)))
			if w.Code != tt.code {
				t.Fatalf("answered %s %s", strconv.Itoa(w.Code), w.Body)
			}
			if tt.code == 200 {
				if diff := cmp.Diff(tt.want, arrived.GetExtra()[ScopesKey]); diff != "" || arrived.GetName() != "bob" {
					t.Errorf("arrived as %v:\n%s", arrived, diff)
				}
			}
		})
	}
}

func TestDeepReviews(t *testing.T) {
	var went bool
	end := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { went = deep(r.Context()) })
	review := &request.RequestInfo{IsResourceRequest: true, Verb: "create", APIGroup: "authorization.k8s.io", Resource: "subjectaccessreviews"}
	masters := person("root", user.SystemPrivilegedGroup)
	for name, tt := range map[string]struct {
		u      user.Info
		info   *request.RequestInfo
		header string
		want   bool
	}{
		"masters":              {masters, review, "true", true},
		"another value":        {masters, review, "1", false},
		"kcp-admin":            {person("x", AdminGroup), review, "true", false},
		"masters out of scope": {with(masters, ScopesKey, "cluster:bb"), review, "true", false},
		"about themselves":     {masters, &request.RequestInfo{IsResourceRequest: true, Verb: "create", APIGroup: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"}, "true", false},
		"something else":       {masters, &request.RequestInfo{IsResourceRequest: true, Verb: "create", Resource: "configmaps"}, "true", false},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set(DeepReviewHeader, tt.header)
		WithDeepReviews(end).ServeHTTP(httptest.NewRecorder(), r.WithContext(request.WithRequestInfo(request.WithUser(in("aa"), tt.u), tt.info)))
		if went != tt.want {
			t.Errorf("%s: %v", name, went)
		}
	}
	WithScopes(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if u, _ := request.UserFrom(r.Context()); inGroup(u, user.SystemPrivilegedGroup) {
			t.Error("who is out of scope is still privileged")
		}
	})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil).WithContext(request.WithUser(in("aa"), with(masters, ScopesKey, "cluster:bb"))))
}

func TestNobodyElseSaysWhoseRightsAUserHas(t *testing.T) {
	u := with(with(with(person("alice"), WarrantKey, "x"), ScopesKey, "y"), "example.com/team", "z")
	for relayed, want := range map[bool]int{false: 1, true: 3} {
		got, err := vetted(in("aa"), u, relayed)
		if err != nil || len(got.GetExtra()) != want {
			t.Errorf("relayed: %v: %v, %v", relayed, got, err)
		}
	}
}

// A request that local bindings allow does not read the tree; other requests do.
func BenchmarkAuthorizeInATree(b *testing.B) {
	m := tenants()
	m.at("top").bindBelow("boss", "cluster-admin", userSubject("boss"))
	z := newAuthorizer(b, Authorization{RBAC: m, Exists: m.exists, Cluster: chainOf("top", "x1", "x2", "x3", "x4", "aa")})
	for name, u := range map[string]user.Info{"owner": person("alice"), "from five above": person("boss"), "stranger": person("mallory")} {
		b.Run(name, func(b *testing.B) {
			ctx, a := in("aa"), resource(u, "create", "configmaps", "default")
			b.ReportAllocs()
			for b.Loop() {
				if d, _, _ := z.Authorize(ctx, a); (d == allow) != (name != "stranger") {
					b.Fatal(d)
				}
			}
		})
	}
}

// An aggregated role has the current rules of its parts, even before the loop has written them.
func TestRoleThatIsAboutToBeMade(t *testing.T) {
	m := tenants()
	top := m.at("top")
	top.clusterRole("sum")
	sum := top.clusterRoles["sum"]
	sum.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"sum": "yes"}}}}
	for c, rule := range map[cluster.Name]rbacv1.PolicyRule{"top": everything, "low": enter} {
		m.at(c).clusterRole("part", rule)
		m.at(c).clusterRoles["part"].Labels = map[string]string{"sum": "yes"}
	}
	z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists})
	r, ok := z.ClusterRole(in("top"), "sum")
	if !ok || !allows(r.Rules, resource(person("x"), "list", "secrets", "x")) || len(sum.Rules) > 0 {
		t.Errorf("got %v, %v of %v", r, ok, sum)
	}
	sum.AggregationRule.ClusterRoleSelectors[0].MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "k", Operator: "Near"}}
	if r, ok := z.ClusterRole(in("top"), "sum"); !ok || len(r.Rules) > 0 {
		t.Errorf("of a rule that nobody can read: %v, %v", r, ok)
	}
	if _, ok := z.ClusterRole(in("low"), "sum"); ok {
		t.Error("it is in another cluster")
	}
}
