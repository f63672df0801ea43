package server_test

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

// Impersonated users have no rights in other clusters.
func TestImpersonationEndsAtTheCluster(t *testing.T) {
	t.Parallel()
	a, b := newTenant(t), victim(t)
	a.allow("alice")
	b.allow("bob")
	b.owner()
	owner := a.owner()
	others := [][]string{
		{"Impersonate-User", "bob"}, {"Impersonate-User", "kcp-admin"}, {"Impersonate-User", "system:kcp"}, {"Impersonate-User", "shard-admin"},
		{"Impersonate-User", "system:serviceaccount:default:owner"},
		{"Impersonate-User", "system:serviceaccount:default:owner", "Impersonate-Extra-Authentication.kcp.io%2fcluster-Name", string(b.name)},
		{"Impersonate-User", "system:kcp:serviceaccount:" + string(b.name) + ":default:owner"},
		{"Impersonate-User", "system:apiserver"}, {"Impersonate-User", "system:admin", "Impersonate-Uid", "0"}, {"Impersonate-User", "system:anonymous"},
		{"Impersonate-User", "bob", "Impersonate-Group", "system:serviceaccounts"}, {"Impersonate-User", "x", "Impersonate-Group", "system:kcp:workspace:access"},
		{"Impersonate-User", "x", "Impersonate-Group", "system:cluster:" + string(b.name)}, {"Impersonate-User", "bob", "Impersonate-Extra-Scopes", "x"},
		{"Impersonate-User", "system:node:n"}, {"Impersonate-User", ""}, {"Impersonate-User", " "}, {"Impersonate-Uid", "1"}, {"Impersonate-Group", "x"}, {"Impersonate-Extra-X", "x"}, {"Impersonate-Extra-%zz", "x"}, {"Impersonate-Nothing", "x"},
	}
	for _, group := range []string{"system:masters", "system:kcp:admin", "system:kcp:logical-cluster-admin", "system:kcp:external-logical-cluster-admin", "system:kcp:tenancy:workspace-bootstrapper"} {
		for _, headers := range [][]string{
			{"Impersonate-User", "x", "Impersonate-Group", group}, {"Impersonate-User", "x", "Impersonate-Group", "a", "Impersonate-Group", group},
			{"Impersonate-User", "x", "Impersonate-Group", group, "Impersonate-Group", "a"}, {"Impersonate-Group", group}, {"Impersonate-User", "x", "Impersonate-Group", group + " "},
			{"Impersonate-User", "system:serviceaccount:default:owner", "Impersonate-Group", group}, {"Impersonate-User", "system:anonymous", "Impersonate-Group", group},
		} {
			for _, v := range []visitor{a.alice(), owner} {
				if got := v.send("GET", a.path("/api/v1/namespaces"), "", headers...); got.ok() || got.broken() {
					t.Errorf("%s as %q: %d %.300s", v.name, headers, got.code, got.body)
				}
			}
			others = append(others, headers)
		}
	}
	v := a.alice()
	for _, headers := range others {
		// Authorization decisions are cached per cluster for some seconds.
		for _, c := range []*tenant{a, b, a, b} {
			got := v.send("GET", c.path("/api/v1/namespaces/default/configmaps"), "", headers...)
			if got.broken() && !strings.Contains(got.body, "without impersonating a user") || c == b && got.ok() {
				t.Errorf("as %q in %s: %d %.300s", headers, c.name, got.code, got.body)
			}
			if got := v.send("GET", "/clusters/system:admin/api/v1/namespaces", "", headers...); got.ok() {
				t.Errorf("as %q in system:admin: %d %.300s", headers, got.code, got.body)
			}
		}
	}
}

// Reviews in one cluster contain nothing about another.
func TestReviewsAreNoOracles(t *testing.T) {
	t.Parallel()
	a, b := newTenant(t), victim(t)
	a.allow("alice")
	b.allow("bob")
	b.owner()
	v := a.alice()
	for _, body := range []string{
		`{"spec":{"user":"bob","resourceAttributes":{"verb":"get","resource":"secrets"}}}`,
		`{"spec":{"user":"bob","groups":["system:authenticated"],"resourceAttributes":{"verb":"get","resource":"secrets","namespace":"` + string(b.name) + `"}}}`,
		`{"spec":{"user":"system:serviceaccount:default:owner","resourceAttributes":{"verb":"get","resource":"secrets","namespace":"default"}}}`,
		`{"spec":{"user":"system:serviceaccount:default:owner","extra":{"authentication.kcp.io/cluster-name":["` + string(b.name) + `"]},"resourceAttributes":{"verb":"get","resource":"secrets"}}}`,
		`{"spec":{"user":"system:serviceaccount:default:owner","extra":{"authentication.kcp.io/cluster-name":["` + string(b.name) + `","` + string(a.name) + `"]},"resourceAttributes":{"verb":"get","resource":"secrets"}}}`,
		`{"spec":{"user":"bob","nonResourceAttributes":{"verb":"access","path":"/"}}}`,
		`{"spec":{"user":"bob","nonResourceAttributes":{"verb":"get","path":"` + b.path("/api") + `"}}}`,
		`{"spec":{"user":"bob","resourceAttributes":null}}`, `{"spec":null}`, `{"spec":{"user":"","groups":[""]}}`, `{}`, `null`, `[]`, ``,
	} {
		for _, kind := range []string{"subjectaccessreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews"} {
			got := v.send("POST", a.path("/apis/authorization.k8s.io/v1/"+kind), body, "Content-Type", "application/json")
			if got.broken() || strings.HasPrefix(kind, "subject") && got.ok() && strings.Contains(got.body, `"allowed":true`) {
				t.Errorf("%s %s: %d %s", kind, body, got.code, got.body)
			}
			for _, other := range []*tenant{b, at(t, b.server, cluster.Admin, as("alice"))} {
				if got := v.send("POST", other.path("/apis/authorization.k8s.io/v1/"+kind), body, "Content-Type", "application/json"); got.code != http.StatusForbidden {
					t.Errorf("%s %s in %s: %d %s", kind, body, other.name, got.code, got.body)
				}
			}
		}
	}
}

// claims returns a token with an invalid signature.
func claims(alg string, c map[string]any) string {
	head, _ := json.Marshal(map[string]any{"alg": alg, "typ": "JWT"})
	body, _ := json.Marshal(c)
	enc := base64.RawURLEncoding.EncodeToString
	return enc(head) + "." + enc(body) + "." + enc([]byte("signature"))
}

func TestForgedTokens(t *testing.T) {
	t.Parallel()
	a, b := newTenant(t), victim(t)
	own, theirs := a.owner(), b.owner()
	split := strings.Split(own.token, ".")
	payload := must(base64.RawURLEncoding.DecodeString(split[1]))(t)
	moved := base64.RawURLEncoding.EncodeToString([]byte(strings.ReplaceAll(string(payload), string(a.name), string(b.name))))
	twice := base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(payload), `"kubernetes.io":{`, `"kubernetes.io":{"clusterName":"`+string(b.name)+`",`, 1)))
	account := map[string]any{"namespace": "default", "serviceaccount": map[string]any{"name": "owner"}, "clusterName": string(b.name)}
	tokens := []string{
		split[0] + "." + moved + "." + split[2], split[0] + "." + twice + "." + split[2], split[0] + "." + split[1] + ".", split[0] + "." + split[1] + "." + strings.Split(theirs.token, ".")[2],
		split[0] + "." + strings.Split(theirs.token, ".")[1] + "." + split[2], own.token + "=", own.token + "\u00e4", own.token + ".x", strings.ToUpper(own.token), "Bearer " + own.token,
		claims("none", map[string]any{"iss": "https://kcp.default.svc", "kubernetes.io": account, "sub": "system:serviceaccount:default:owner"}),
		claims("HS256", map[string]any{"iss": "kubernetes/serviceaccount", "kubernetes.io/serviceaccount/clusterName": string(b.name)}),
		claims("ES256", map[string]any{"kubernetes.io": map[string]any{"clusterName": "../" + string(b.name)}}),
		claims("ES256", map[string]any{"kubernetes.io": map[string]any{"clusterName": "*"}}), claims("ES256", map[string]any{"kubernetes.io": map[string]any{"clusterName": "system:admin"}}),
		claims("ES256", map[string]any{"kubernetes.io": nil}), claims("ES256", nil), "..", "...", "a.b.c", strings.Repeat("x.", 8000), strings.Repeat("A", 100000),
	}
	for _, token := range tokens {
		for _, target := range []string{b.path("/api/v1/namespaces/default/secrets"), "/api/v1/namespaces/default/secrets", a.path("/api/v1/namespaces"), "/clusters/*/api/v1/secrets"} {
			got, err := a.visitor("forger", token).try("GET", target, "")
			if err == nil && (got.ok() || got.broken()) {
				t.Errorf("%.200s: %s: %d %.300s", token, target, got.code, got.body)
			}
		}
		review, err := json.Marshal(map[string]any{"spec": map[string]any{"token": token}})
		if err != nil {
			t.Fatal(err)
		}
		if got := own.send("POST", a.path("/apis/authentication.k8s.io/v1/tokenreviews"), string(review), "Content-Type", "application/json"); strings.Contains(got.body, `"authenticated":true`) || got.broken() {
			t.Errorf("%.200s is reviewed: %d %s", token, got.code, got.body)
		}
	}
}

func TestReviewsOfTokensWithMore(t *testing.T) {
	t.Parallel()
	a := newTenant(t)
	v := a.owner()
	for _, more := range []string{" x", "\n", "\tx", " "} {
		body, err := json.Marshal(map[string]any{"spec": map[string]any{"token": v.token + more}})
		if err != nil {
			t.Fatal(err)
		}
		if got := v.send("POST", a.path("/apis/authentication.k8s.io/v1/tokenreviews"), string(body), "Content-Type", "application/json"); !got.ok() || strings.Contains(got.body, `"authenticated":true`) {
			t.Errorf("with %q: %d %s", more, got.code, got.body)
		}
	}
}

// Users cannot get a token, or a token secret, of an account in another cluster.
func TestTokensForAccountsElsewhere(t *testing.T) {
	t.Parallel()
	a, b := newTenant(t), victim(t)
	b.owner()
	v := a.owner()
	theirs := must(b.kube.CoreV1().ServiceAccounts("default").Get(t.Context(), "owner", metav1.GetOptions{}))(t)
	secret := must(b.kube.CoreV1().Secrets("default").Get(t.Context(), "treasure", metav1.GetOptions{}))(t)
	const accounts = "/api/v1/namespaces/default/serviceaccounts/"
	for _, body := range []string{
		`{"spec":{"boundObjectRef":{"kind":"Secret","apiVersion":"v1","name":"treasure","uid":"` + string(secret.UID) + `"}}}`,
		`{"spec":{"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"p"}}}`, `{"spec":{"boundObjectRef":{"kind":"Node","apiVersion":"v1","name":"n"}}}`,
		`{"spec":{"boundObjectRef":{"kind":"Secret","apiVersion":"v1","name":"../../` + string(b.name) + `/default/treasure"}}}`,
		`{"spec":{"expirationSeconds":-1}}`, `{"spec":{"expirationSeconds":9223372036854775807}}`, `{"spec":{"audiences":[]}}`, `{"spec":null}`, `null`, `{"metadata":{"name":"other"},"spec":{}}`,
	} {
		got := v.send("POST", a.path(accounts+"owner/token"), body, "Content-Type", "application/json")
		if got.broken() || strings.Contains(body, "boundObjectRef") && got.ok() {
			t.Errorf("%s: %d %s", body, got.code, got.body)
		}
		for _, target := range []string{b.path(accounts + "owner/token"), a.path(accounts + "..%2F" + string(b.name) + "%2Fowner/token"), "/clusters/system:admin" + accounts + "owner/token"} {
			if got := v.send("POST", target, body, "Content-Type", "application/json"); got.ok() || got.broken() {
				t.Errorf("%s %s: %d %s", target, body, got.code, got.body)
			}
		}
	}
	// A token for other audiences does not authenticate at the server.
	got := v.send("POST", a.path(accounts+"owner/token"), `{"spec":{"audiences":["system:kcp","`+b.server.url+`"]}}`, "Content-Type", "application/json")
	if elsewhere := text(parsed(t, got), "status", "token"); a.visitor("stranger", elsewhere).send("GET", a.path("/api/v1/namespaces"), "").code != http.StatusUnauthorized {
		t.Error("a token for other audiences is accepted")
	}
	for name, annotations := range map[string]map[string]string{
		"uid":  {corev1.ServiceAccountNameKey: "owner", corev1.ServiceAccountUIDKey: string(theirs.UID)},
		"name": {corev1.ServiceAccountNameKey: string(b.name) + ":default:owner"},
		"path": {corev1.ServiceAccountNameKey: "../../" + string(b.name) + "/owner"},
	} {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}, Type: corev1.SecretTypeServiceAccountToken}
		if _, err := a.kube.CoreV1().Secrets("default").Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			continue // refused at once
		}
		a.await(core("secrets"), "default", name, func(o *unstructured.Unstructured) bool {
			if token := text(o, "data", "token"); token != "" && token != "<nil>" {
				t.Errorf("%s got a token: %s", name, token)
			}
			return o == nil
		})
	}
}

// Roles apply only in their own cluster.
func TestRolesStayInTheirCluster(t *testing.T) {
	t.Parallel()
	a, b := newTenant(t), victim(t)
	v := a.owner()
	b.grant("view-by-name", rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "readers-of-b"})
	const all = "/apis/rbac.authorization.k8s.io/v1/"
	everything := `"rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]},{"nonResourceURLs":["*"],"verbs":["*"]}]`
	for _, name := range []string{
		"cluster-admin", "system:discovery", "system:public-info-viewer", "system:basic-user", "view", "system:kcp:workspace:access", "system:kcp:metrics-reader", "system:kcp:tenancy:reader", "system:kcp:admin:cluster-admin",
		"system:kcp:logical-cluster-admin", "system:aggregate-to-view", "system:kcp:tenancy:authenticated:access",
	} {
		labels := `"labels":{"rbac.authorization.k8s.io/aggregate-to-view":"true","rbac.authorization.k8s.io/aggregate-to-admin":"true","rbac.authorization.k8s.io/aggregate-to-edit":"true"}`
		role := `{"metadata":{"name":"` + name + `",` + labels + `},` + everything + `}`
		binding := `{"metadata":{"name":"` + name + `"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"` + name + `"},"subjects":[{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"system:serviceaccounts"}]}`
		for kind, body := range map[string]string{"clusterroles": role, "clusterrolebindings": binding} {
			if got := v.send("POST", a.path(all+kind), body, "Content-Type", "application/json"); got.broken() {
				t.Errorf("%s %s: %d %s", kind, name, got.code, got.body)
			}
			for _, c := range []string{b.path(""), "/clusters/root", "/clusters/system:admin", "/clusters/system:shard"} {
				if got := v.send("POST", c+all+kind, body, "Content-Type", "application/json"); got.code != http.StatusForbidden {
					t.Errorf("%s %s in %s: %d %s", kind, name, c, got.code, got.body)
				}
			}
		}
	}
	for _, p := range []string{"/api", "/version", "/api/v1/namespaces", "/api/v1/namespaces/default/configmaps"} {
		for _, w := range []visitor{v, a.nobody(), a.anonymous()} {
			if got := w.send("GET", b.path(p), ""); got.code != http.StatusForbidden {
				t.Errorf("%s: %s: %d %s", w.name, p, got.code, got.body)
			}
		}
	}
	for _, p := range []string{"/metrics", "/debug/pprof/heap", a.path("/debug/pprof/heap")} {
		if got := v.send("GET", p, ""); got.ok() {
			t.Errorf("%s: %d", p, got.code)
		}
	}
}

// A service account that creates a workspace becomes its administrator. An account of the
// same name in the workspace does not.
func TestWorkspacesOfServiceAccounts(t *testing.T) {
	t.Parallel()
	a := newTenant(t)
	v := a.owner()
	got := v.send("POST", a.path("/apis/tenancy.kcp.io/v1alpha1/workspaces"), `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"child"}}`, "Content-Type", "application/json")
	if !got.ok() {
		t.Fatalf("%d %s", got.code, got.body)
	}
	child := at(t, a.server, clusterOf(parsed(t, got)), server.System())
	if got := v.send("GET", child.path("/api/v1/namespaces/default/secrets"), ""); !got.ok() {
		t.Errorf("its maker: %d %s", got.code, got.body)
	}
	if _, err := child.kube.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	namesake := child.visitor("namesake", child.token("owner"))
	if got := namesake.send("GET", child.path("/api/v1/namespaces/default/secrets"), ""); got.code != http.StatusForbidden {
		t.Errorf("its namesake: %d %s", got.code, got.body)
	}
}
