package authz

import (
	"context"
	"encoding/json"
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
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/core/install" // errors are encoded in version v1

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/auth/authn"
	"github.com/unforked/kcp/internal/auth/authtest"
	"github.com/unforked/kcp/internal/cluster"
)

// The chain is that of the server: the limits, then the filter of Kubernetes with the authorizer.
// Its last handler returns the user of the request.
func TestImpersonation(t *testing.T) {
	m := tenants()
	z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists})
	end := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, _ := request.UserFrom(r.Context())
		_, _ = w.Write([]byte(u.GetName()))
	})
	chain := WithImpersonationLimits(WithImpersonation(end, z, legacyscheme.Codecs), legacyscheme.Codecs)
	info := &request.RequestInfo{IsResourceRequest: true, Verb: "get", APIVersion: "v1", Resource: "configmaps", Namespace: "default", Name: "x"}

	masters, admin, alice := authtest.Person("root", user.SystemPrivilegedGroup), authtest.Person(authn.KcpAdmin, auth.AdminGroup), authtest.Person("alice")
	for name, tt := range map[string]struct {
		u      user.Info
		as     string
		groups []string
		ok     bool
	}{
		"nobody":                       {alice, "", nil, true},
		"a user":                       {alice, "carol", nil, true},
		"a user and a group":           {alice, "carol", []string{"dev"}, true},
		"without being allowed to":     {authtest.Person("carol"), "alice", nil, false},
		"masters":                      {alice, "carol", []string{"system:masters"}, false},
		"masters behind another group": {alice, "carol", []string{"dev", "system:masters"}, false},
		"kcp admin":                    {alice, "carol", []string{"system:kcp:admin"}, false},
		"logical cluster admin":        {alice, "carol", []string{"system:kcp:logical-cluster-admin"}, false},
		"external one":                 {alice, "carol", []string{"system:kcp:external-logical-cluster-admin"}, false},
		"bootstrapper":                 {alice, "carol", []string{"system:kcp:tenancy:workspace-bootstrapper"}, false},
		"authenticated":                {alice, "carol", []string{"system:authenticated"}, true},
		"authenticated by anonymous":   {authtest.Nobody(), "carol", []string{"system:authenticated"}, false},
		"kcp admin by a member":        {admin, "carol", []string{"system:kcp:admin"}, true},
		"masters by kcp admin":         {admin, "carol", []string{"system:masters"}, false},
		"masters by masters":           {masters, "carol", []string{"system:masters"}, true},
		"kcp admin by masters":         {masters, "carol", []string{"system:kcp:admin"}, true},
		"groups without a user":        {alice, "", []string{"system:masters"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "/api/v1/namespaces/default/configmaps/x", nil)
			if tt.as != "" {
				r.Header.Set("impersonate-user", tt.as)
			}
			for _, g := range tt.groups {
				r.Header.Add("impersonate-group", g)
			}
			ctx := request.WithRequestInfo(request.WithUser(authtest.In("aa"), tt.u), info)
			w := httptest.NewRecorder()
			chain.ServeHTTP(w, r.WithContext(ctx))
			if !tt.ok {
				var status metav1.Status
				if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil || w.Code != http.StatusForbidden || status.Reason != metav1.StatusReasonForbidden {
					t.Errorf("answered %d %s, %v; want 403", w.Code, w.Body, err)
				}
				return
			}
			want := tt.as
			if want == "" {
				want = tt.u.GetName()
			}
			if w.Code != http.StatusOK || w.Body.String() != want {
				t.Errorf("answered %d %s; want %s", w.Code, w.Body, want)
			}
		})
	}
}

// The right to impersonate in one cluster is not valid in another, even directly after a use.
// The last handler gets no impersonation headers.
func TestImpersonationIsPerCluster(t *testing.T) {
	m := tenants()
	z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists})
	var arrived user.Info
	end := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { arrived, _ = request.UserFrom(r.Context()) })
	chain := WithImpersonationLimits(WithImpersonation(end, z, legacyscheme.Codecs), legacyscheme.Codecs)
	node := &user.DefaultInfo{Name: "system:serviceaccount:default:agent", Groups: []string{"system:serviceaccounts"},
		Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"n1"}}}
	m.at("aa").bind("agent", "cluster-admin", accountSubject("default", "agent"))
	send := func(c cluster.Name, u user.Info, as string) int {
		t.Helper()
		arrived = nil
		r := httptest.NewRequest(http.MethodGet, "/api/v1/namespaces/default/configmaps/x", nil)
		if as != "" {
			r.Header.Set("Impersonate-User", as)
		}
		info := &request.RequestInfo{IsResourceRequest: true, Verb: "get", APIVersion: "v1", Resource: "configmaps", Namespace: "default", Name: "x"}
		w := httptest.NewRecorder()
		chain.ServeHTTP(w, r.WithContext(request.WithRequestInfo(request.WithUser(authtest.In(c), u), info)))
		return w.Code
	}
	for name, tt := range map[string]struct {
		u  user.Info
		as string
	}{
		"a user":           {authtest.Person("alice"), "bob"},
		"a group's member": {authtest.Person("alice", "dev"), "bob"},
		"an account":       {authtest.Person("alice"), "system:serviceaccount:default:robot"},
		"a node":           {authtest.Person("alice"), "system:node:n1"},
		"its own node":     {node, "system:node:n1"},
	} {
		for range 2 {
			if code := send("aa", tt.u, tt.as); code != http.StatusOK || arrived.GetName() != tt.as {
				t.Errorf("%s at home: answered %d, arrived as %v", name, code, arrived)
			}
			for _, c := range []cluster.Name{"bb", "root", cluster.All, cluster.Admin, ""} {
				if code := send(c, tt.u, tt.as); code != http.StatusForbidden || arrived != nil {
					t.Errorf("%s in %q: answered %d, arrived as %v", name, c, code, arrived)
				}
			}
		}
	}
	alice := authtest.Person("alice")
	if code := send("bb", alice, ""); code != http.StatusOK || arrived != alice {
		t.Errorf("without impersonation: answered %d, arrived as %#v", code, arrived)
	}
}

// A right to impersonate ends when it is revoked, also directly after a use.
func TestImpersonationEndsWithTheRight(t *testing.T) {
	m := tenants()
	m.at("aa").clusterRole("constrained",
		rbacv1.PolicyRule{Verbs: []string{"impersonate:user-info"}, APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"users"}, ResourceNames: []string{"alice"}},
		rbacv1.PolicyRule{Verbs: []string{"impersonate-on:user-info:get"}, APIGroups: []string{""}, Resources: []string{"configmaps"}})
	before := m.at("aa").clusterRoleBindings
	m.at("aa").bind("constrained", "constrained", userSubject("carol"))
	z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists})
	chain := WithImpersonation(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), z, legacyscheme.Codecs)
	send := func() int {
		r := httptest.NewRequest(http.MethodGet, "/api/v1/namespaces/default/configmaps/x", nil)
		r.Header.Set("Impersonate-User", "alice")
		info := &request.RequestInfo{IsResourceRequest: true, Verb: "get", APIVersion: "v1", Resource: "configmaps", Namespace: "default", Name: "x"}
		w := httptest.NewRecorder()
		chain.ServeHTTP(w, r.WithContext(request.WithRequestInfo(request.WithUser(authtest.In("aa"), authtest.Person("carol")), info)))
		return w.Code
	}
	if code := send(); code != http.StatusOK {
		t.Fatalf("with the right: %d", code)
	}
	m.at("aa").clusterRoleBindings = before
	if code := send(); code != http.StatusForbidden {
		t.Errorf("without the right: %d", code)
	}
}

// The right to impersonate can be checked again while a request is open: that by which the filter let the request pass,
// of whichever mode.
func TestMayStillImpersonate(t *testing.T) {
	const initializer = auth.InitializerGroupPrefix + "root:web" // only members may impersonate it
	m := tenants()
	at := m.at("aa")
	at.clusterRole("users", rbacv1.PolicyRule{Verbs: []string{"impersonate"}, APIGroups: []string{""}, Resources: []string{"users"}})
	at.clusterRole("groups", rbacv1.PolicyRule{Verbs: []string{"impersonate"}, APIGroups: []string{""}, Resources: []string{"groups"}})
	at.clusterRole("constrained", // not sufficient: one of the two rights
		rbacv1.PolicyRule{Verbs: []string{"impersonate-on:user-info:get"}, APIGroups: []string{""}, Resources: []string{"configmaps"}})
	at.bind("carol-users", "users", userSubject("carol"))
	at.bind("carol-constrained", "constrained", userSubject("carol"))
	before := at.clusterRoleBindings
	at.bind("dev-groups", "groups", groupSubject("dev"))
	z := newAuthorizer(t, Authorization{RBAC: m, Exists: m.exists})
	var arrived context.Context
	chain := WithImpersonationLimits(WithImpersonation(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { arrived = r.Context() }), z, legacyscheme.Codecs), legacyscheme.Codecs)
	carol := authtest.Person("carol", "dev", initializer)
	header := http.Header{"Impersonate-User": {"alice"}, "Impersonate-Group": {initializer}}
	r := httptest.NewRequest(http.MethodGet, "/api/v1/namespaces/default/configmaps/x", nil)
	r.Header = header.Clone()
	info := &request.RequestInfo{IsResourceRequest: true, Verb: "get", APIVersion: "v1", Resource: "configmaps", Namespace: "default", Name: "x"}
	chain.ServeHTTP(httptest.NewRecorder(), r.WithContext(request.WithRequestInfo(request.WithUser(authtest.In("aa"), carol), info)))
	if arrived == nil {
		t.Fatal("the request is refused")
	}
	if by, ok := Requestor(arrived); !ok || by.GetName() != "carol" {
		t.Errorf("the requestor is %v", by)
	}
	check := func(when string, u user.Info, want bool) {
		t.Helper()
		if may, err := MayStillImpersonate(arrived, u, header, z); may != want || err != nil {
			t.Errorf("%s: %v, %v", when, may, err)
		}
	}
	check("nothing has changed", carol, true)
	check("the requestor is in the group with the right no more", authtest.Person("carol", initializer), false)
	check("the requestor is in the impersonated group no more", authtest.Person("carol", "dev"), false)
	with := at.clusterRoleBindings
	at.clusterRoleBindings = slices.DeleteFunc(slices.Clone(with), func(b *rbacv1.ClusterRoleBinding) bool { return b.Name == "carol-constrained" })
	check("a right that was not sufficient is removed", carol, true)
	at.clusterRoleBindings = before
	check("the right to the group is removed", carol, false)
	if may, err := MayStillImpersonate(authtest.In("aa"), carol, http.Header{}, z); !may || err != nil {
		t.Errorf("a request that impersonates nobody: %v, %v", may, err)
	}
}

func TestImpersonationWithoutUserName(t *testing.T) {
	z := newAuthorizer(t, Authorization{})
	chain := WithImpersonation(http.NotFoundHandler(), z, legacyscheme.Codecs)
	for _, header := range []string{"Impersonate-Group", "Impersonate-Uid", "Impersonate-Extra-Scopes"} {
		r := httptest.NewRequest(http.MethodGet, "/api", nil)
		r.Header.Set(header, "x")
		w := httptest.NewRecorder()
		chain.ServeHTTP(w, r.WithContext(request.WithUser(authtest.In("aa"), authtest.Person("alice"))))
		if w.Code != http.StatusBadRequest {
			t.Errorf("%s alone: answered %d %s", header, w.Code, w.Body)
		}
	}
}

func TestImpersonationNeedsAuthentication(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/api", nil)
	r.Header.Set("Impersonate-Group", "system:masters")
	w := httptest.NewRecorder()
	WithImpersonationLimits(http.NotFoundHandler(), legacyscheme.Codecs).ServeHTTP(w, r)
	if w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "no user") {
		t.Errorf("answered %d %s", w.Code, w.Body)
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
	masters := authtest.Person("root", user.SystemPrivilegedGroup)
	for name, tt := range map[string]struct {
		u      user.Info
		header string // of an extra
		want   []string
		code   int
	}{
		"by the owner":                {authtest.Person("alice"), "", []string{"cluster:aa"}, 200},
		"by one in a scope":           {authtest.With(authtest.Person("alice"), auth.ScopesKey, "cluster:aa,cluster:bb"), "", []string{"cluster:aa,cluster:bb", "cluster:aa"}, 200},
		"by one out of scope":         {authtest.With(authtest.Person("alice"), auth.ScopesKey, "cluster:bb"), "", nil, 403},
		"by masters":                  {masters, "", nil, 200},
		"by masters in a scope":       {authtest.With(masters, auth.ScopesKey, "cluster:aa"), "", []string{"cluster:aa"}, 200},
		"masters choose scopes":       {masters, "Impersonate-Extra-Authentication.kcp.io%2fscopes", []string{"x"}, 200},
		"the owner does not":          {authtest.Person("alice"), "Impersonate-Extra-Authentication.kcp.io%2fscopes", nil, 403},
		"nor gives a warrant":         {authtest.Person("alice"), "Impersonate-Extra-Authorization.kcp.io%2Fwarrant", nil, 403},
		"nor the cluster of accounts": {authtest.Person("alice"), "Impersonate-Extra-Authentication.kcp.io%2fcluster-Name", nil, 403},
		"nor an original name":        {authtest.Person("alice"), "Impersonate-Extra-Experimental.authorization.kcp.io%2foriginal-Username", nil, 403},
		"anything else":               {authtest.Person("alice"), "Impersonate-Extra-Example.com%2fteam", []string{"cluster:aa"}, 200},
	} {
		t.Run(name, func(t *testing.T) {
			arrived = nil
			r := httptest.NewRequest(http.MethodGet, "/api/v1/namespaces/default/configmaps/x", nil)
			r.Header.Set("Impersonate-User", "bob")
			if tt.header != "" {
				r.Header[tt.header] = []string{"x"}
			}
			w := httptest.NewRecorder()
			chain.ServeHTTP(w, r.WithContext(request.WithRequestInfo(request.WithUser(authtest.In("aa"), tt.u), info)))
			if w.Code != tt.code {
				t.Fatalf("answered %s %s", strconv.Itoa(w.Code), w.Body)
			}
			if tt.code == 200 {
				if diff := cmp.Diff(tt.want, arrived.GetExtra()[auth.ScopesKey]); diff != "" || arrived.GetName() != "bob" {
					t.Errorf("arrived as %v:\n%s", arrived, diff)
				}
			}
		})
	}
}
