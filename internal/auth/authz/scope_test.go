package authz

import (
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/auth/authtest"
	"github.com/unforked/kcp/internal/cluster"
)

func warrant(t *testing.T, u user.Info) string {
	t.Helper()
	text, err := auth.Warrant{User: u.GetName(), Groups: u.GetGroups(), UID: u.GetUID(), Extra: u.GetExtra()}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestEffectiveUsers(t *testing.T) {
	alice, robot := authtest.Person("alice"), authtest.Account("aa", "ns", "robot")
	for name, tt := range map[string]struct {
		u    user.Info
		want []string // in cluster aa
	}{
		"nobody special":        {alice, []string{"alice [system:authenticated]"}},
		"in scope":              {authtest.With(alice, auth.ScopesKey, "cluster:aa"), []string{"alice [system:authenticated]"}},
		"in one of them":        {authtest.With(alice, auth.ScopesKey, "cluster:bb,cluster:aa"), []string{"alice [system:authenticated]"}},
		"in all of them":        {authtest.With(alice, auth.ScopesKey, "cluster:bb,cluster:aa", "cluster:aa"), []string{"alice [system:authenticated]"}},
		"in not all of them":    {authtest.With(alice, auth.ScopesKey, "cluster:aa", "cluster:bb"), []string{"system:anonymous [system:authenticated system:cluster:aa system:cluster:bb]"}},
		"out of scope":          {authtest.With(alice, auth.ScopesKey, "cluster:bb"), []string{"system:anonymous [system:authenticated system:cluster:bb]"}},
		"anonymous out of it":   {authtest.With(authtest.Nobody(), auth.ScopesKey, "cluster:bb"), []string{"system:anonymous [system:unauthenticated system:cluster:bb]"}},
		"a scope that is empty": {authtest.With(alice, auth.ScopesKey, ""), []string{"system:anonymous [system:authenticated]"}},
		"of another kind":       {authtest.With(alice, auth.ScopesKey, "aa,user:aa,cluster:*"), []string{"system:anonymous [system:authenticated]"}},
		"with a space":          {authtest.With(alice, auth.ScopesKey, "cluster: aa"), []string{"system:anonymous [system:authenticated]"}},
		"no scopes at all":      {authtest.With(alice, auth.ScopesKey), []string{"alice [system:authenticated]"}},
		"a warrant":             {authtest.With(alice, auth.WarrantKey, warrant(t, authtest.Person("bob", "devs"))), []string{"alice [system:authenticated]", "bob [devs system:authenticated]"}},
		"a warrant of a warrant": {authtest.With(alice, auth.WarrantKey, warrant(t, authtest.With(authtest.Person("bob"), auth.WarrantKey, `{"user":"carol"}`))),
			[]string{"alice [system:authenticated]", "bob [system:authenticated]", "carol []"}},
		"a warrant with a scope":       {authtest.With(alice, auth.WarrantKey, warrant(t, authtest.With(authtest.Person("bob"), auth.ScopesKey, "cluster:bb"))), []string{"alice [system:authenticated]", "system:anonymous [system:authenticated system:cluster:bb]"}},
		"out of scope with a warrant":  {authtest.With(authtest.With(alice, auth.ScopesKey, "cluster:bb"), auth.WarrantKey, `{"user":"bob"}`), []string{"system:anonymous [system:authenticated system:cluster:bb]", "bob []"}},
		"malformed warrants":           {authtest.With(alice, auth.WarrantKey, "", "x", "[]", `{"user":1}`, `{"user":"bob"`), []string{"alice [system:authenticated]"}},
		"an account":                   {robot, []string{"system:serviceaccount:ns:robot [system:serviceaccounts system:serviceaccounts:ns system:authenticated]", "system:kcp:serviceaccount:aa:ns:robot [system:authenticated system:cluster:aa]"}},
		"a warrant for an account":     {authtest.With(alice, auth.WarrantKey, `{"user":"system:serviceaccount:ns:robot","extra":{"authentication.kcp.io/cluster-name":["bb"]}}`), []string{"alice [system:authenticated]", "system:kcp:serviceaccount:bb:ns:robot [system:authenticated system:cluster:bb]"}},
		"for one of no cluster":        {authtest.With(alice, auth.WarrantKey, `{"user":"system:serviceaccount:ns:robot"}`), []string{"alice [system:authenticated]"}},
		"for one of two":               {authtest.With(alice, auth.WarrantKey, `{"user":"system:serviceaccount:ns:robot","extra":{"authentication.kcp.io/cluster-name":["aa","bb"]}}`), []string{"alice [system:authenticated]"}},
		"an account that is elsewhere": {authtest.With(authtest.Account("bb", "ns", "robot"), auth.ScopesKey, "cluster:bb"), []string{"system:anonymous [system:authenticated system:cluster:bb]"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			auth.Effective("aa", tt.u, func(e user.Info) bool {
				e = auth.AccountIn("aa", e)
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
		r, p, _, err := z.RulesFor(authtest.In("aa"), u, "default")
		if err != nil {
			t.Fatal(err)
		}
		return len(r), len(p)
	}
	nobodyRules, nobodyPaths := count(authtest.Person("nobody"))
	view, _ := z.Bootstrap().ClusterRole("view")
	about := 0
	for _, r := range view.Rules {
		if len(r.Resources) > 0 {
			about++
		}
	}
	// Each of its two bindings counts.
	if rules, paths := count(authtest.Account("aa", "ns", "robot")); rules < nobodyRules || rules > nobodyRules+2*about+1 || paths > nobodyPaths+1 {
		t.Errorf("%d rules and %d paths; everybody has %d and %d, the role %d", rules, paths, nobodyRules, nobodyPaths, about)
	}
}

// Rights of users that are limited to some clusters do not apply below: neither those of a user
// with scopes, nor those of a warrant with scopes.
func TestUnboundedUsers(t *testing.T) {
	alice := authtest.Person("alice")
	scoped := authtest.With(authtest.Person("bob"), auth.ScopesKey, "cluster:aa")
	for name, tt := range map[string]struct {
		u    user.Info
		want []string
	}{
		"nobody special":             {alice, []string{"alice"}},
		"scoped":                     {scoped, []string{"system:anonymous"}},
		"a warrant":                  {authtest.With(alice, auth.WarrantKey, warrant(t, authtest.Person("bob"))), []string{"alice", "bob"}},
		"a warrant with scopes":      {authtest.With(alice, auth.WarrantKey, warrant(t, scoped)), []string{"alice"}},
		"scoped, with a warrant":     {authtest.With(scoped, auth.WarrantKey, warrant(t, alice)), []string{"system:anonymous", "alice"}},
		"one in another":             {authtest.With(alice, auth.WarrantKey, warrant(t, authtest.With(authtest.Person("carol"), auth.WarrantKey, warrant(t, scoped)))), []string{"alice", "carol"}},
		"a malformed warrant":        {authtest.With(alice, auth.WarrantKey, "x"), []string{"alice"}},
		"masters with a scope":       {authtest.With(authtest.Person("x", user.SystemPrivilegedGroup), auth.ScopesKey, "cluster:aa"), []string{"system:anonymous"}},
		"an account and its cluster": {authtest.Account("aa", "ns", "robot"), []string{"system:serviceaccount:ns:robot", "system:kcp:serviceaccount:aa:ns:robot"}},
	} {
		var got []string
		auth.Effective("aa", auth.Unbounded(tt.u), func(e user.Info) bool { got = append(got, e.GetName()); return true })
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// The number and the nesting of warrants are limited.
func TestEffectiveUsersAreBounded(t *testing.T) {
	deep := authtest.Person("alice")
	for range 8 {
		w := warrant(t, deep)
		deep = authtest.With(authtest.Person("alice"), auth.WarrantKey, w, w, w)
	}
	n := 0
	auth.Effective("aa", deep, func(user.Info) bool { n++; return true })
	if n > auth.MaxEffective {
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
	alice, carol, masters := authtest.Person("alice"), authtest.Person("carol"), authtest.Person("x", user.SystemPrivilegedGroup)
	for name, tt := range map[string]struct {
		in   cluster.Name
		a    authorizer.AttributesRecord
		want bool
	}{
		"in scope":                              {"aa", resource(authtest.With(alice, auth.ScopesKey, "cluster:aa"), "get", "secrets", "x"), true},
		"out of scope":                          {"aa", resource(authtest.With(alice, auth.ScopesKey, "cluster:bb"), "get", "secrets", "x"), false},
		"out of scope, with what is for those":  {"aa", resource(authtest.With(alice, auth.ScopesKey, "cluster:bb"), "list", "events", "x"), true},
		"a warrant lets in and allows":          {"aa", resource(authtest.With(authtest.Person("eve"), auth.WarrantKey, warrant(t, alice)), "get", "secrets", "x"), true},
		"it adds to what they have":             {"bb", resource(authtest.With(carol, auth.WarrantKey, `{"user":"x","groups":["`+auth.WorkspaceAccessGroup+`"]}`), "get", "configmaps", "default"), true},
		"but not elsewhere":                     {"bb", resource(authtest.With(authtest.Person("eve"), auth.WarrantKey, warrant(t, alice)), "get", "secrets", "x"), false},
		"a warrant for kcp-admin":               {"bb", resource(authtest.With(authtest.Person("eve"), auth.WarrantKey, warrant(t, authtest.Person("y", auth.AdminGroup))), "get", "secrets", "x"), true},
		"a warrant makes nobody privileged":     {cluster.Admin, resource(authtest.With(authtest.Person("eve"), auth.WarrantKey, warrant(t, masters)), "get", "leases", "x"), false},
		"privileged in scope":                   {"aa", resource(authtest.With(masters, auth.ScopesKey, "cluster:aa"), "get", "secrets", "x"), true},
		"privileged out of scope":               {"bb", resource(authtest.With(masters, auth.ScopesKey, "cluster:aa"), "get", "secrets", "x"), false},
		"privileged in all, but for a scope":    {cluster.All, resource(authtest.With(masters, auth.ScopesKey, "cluster:*"), "list", "secrets", ""), false},
		"privileged nowhere, but for a scope":   {"", nonResource(authtest.With(masters, auth.ScopesKey, "cluster:"), "get", "/version"), false},
		"a warrant for an account of bb in bb":  {"bb", resource(authtest.With(authtest.Person("eve"), auth.WarrantKey, warrant(t, authtest.Account("bb", "default", "x"))), "get", "secrets", "x"), false},
		"a warrant for an account of aa, in aa": {"aa", resource(authtest.With(authtest.Person("eve"), auth.WarrantKey, warrant(t, authtest.Account("aa", "default", "robot"))), "update", "configmaps", "default"), true},
	} {
		t.Run(name, func(t *testing.T) {
			if d, _, err := z.Authorize(authtest.In(tt.in), tt.a); (d == allow) != tt.want || err != nil {
				t.Errorf("got %v, %v; want allowed: %v", d, err, tt.want)
			}
		})
	}
	held := func(u user.Info) int {
		rules, err := z.Rules().RulesFor(authtest.In("aa"), u, "default")
		if err != nil {
			t.Fatal(err)
		}
		return len(rules)
	}
	if plain, warranted, scoped := held(authtest.Person("eve")), held(authtest.With(authtest.Person("eve"), auth.WarrantKey, warrant(t, alice))), held(authtest.With(alice, auth.ScopesKey, "cluster:cc")); warranted <= plain || scoped > plain {
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
		u := []user.Info{authtest.Person("alice"), authtest.Person("bob"), authtest.Person("x", user.SystemPrivilegedGroup), authtest.Account("aa", "default", "robot")}[r.IntN(4)]
		c := []cluster.Name{"aa", "bb", cluster.All, cluster.Admin, ""}[r.IntN(5)]
		scoped, _, _ := z.Authorize(authtest.In(c), resource(authtest.With(u, auth.ScopesKey, scopes...), "update", "configmaps", "default"))
		plain, _, _ := z.Authorize(authtest.In(c), resource(u, "update", "configmaps", "default"))
		if scoped == allow && (plain != allow || !slices.ContainsFunc(scopes, func(s string) bool { return strings.Contains(s, "cluster:"+string(c)) })) {
			t.Fatalf("%s with scopes %q in %q is allowed", u.GetName(), scopes, c)
		}
	}
}

func TestDeepReviews(t *testing.T) {
	var went bool
	end := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { went = deep(r.Context()) })
	review := &request.RequestInfo{IsResourceRequest: true, Verb: "create", APIGroup: "authorization.k8s.io", Resource: "subjectaccessreviews"}
	masters := authtest.Person("root", user.SystemPrivilegedGroup)
	for name, tt := range map[string]struct {
		u      user.Info
		info   *request.RequestInfo
		header string
		want   bool
	}{
		"masters":              {masters, review, "true", true},
		"another value":        {masters, review, "1", false},
		"kcp-admin":            {authtest.Person("x", auth.AdminGroup), review, "true", false},
		"masters out of scope": {authtest.With(masters, auth.ScopesKey, "cluster:bb"), review, "true", false},
		"about themselves":     {masters, &request.RequestInfo{IsResourceRequest: true, Verb: "create", APIGroup: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"}, "true", false},
		"something else":       {masters, &request.RequestInfo{IsResourceRequest: true, Verb: "create", Resource: "configmaps"}, "true", false},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set(DeepReviewHeader, tt.header)
		WithDeepReviews(end).ServeHTTP(httptest.NewRecorder(), r.WithContext(request.WithRequestInfo(request.WithUser(authtest.In("aa"), tt.u), tt.info)))
		if went != tt.want {
			t.Errorf("%s: %v", name, went)
		}
	}
	WithScopes(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if u, _ := request.UserFrom(r.Context()); auth.InGroup(u, user.SystemPrivilegedGroup) {
			t.Error("who is out of scope is still privileged")
		}
	})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil).WithContext(request.WithUser(authtest.In("aa"), authtest.With(masters, auth.ScopesKey, "cluster:bb"))))
}
