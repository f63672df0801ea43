package server_test

import (
	"fmt"
	"testing"

	"github.com/unforked/kcp/internal/cluster"
)

// oracles returns requests whose responses could show whether a cluster exists.
func oracles() [][3]string {
	return [][3]string{
		{"GET", "/api/v1/namespaces/default/configmaps"}, {"GET", "/api/v1/namespaces/default/configmaps/treasure"}, {"GET", "/api/v1/namespaces/default/configmaps/none"},
		{"GET", "/api/v1/namespaces/none/secrets"}, {"GET", "/api/v1/namespaces?watch=1"}, {"GET", "/api/v1/watch/namespaces"},
		{"POST", "/api/v1/namespaces", `{"metadata":{"name":"x"}}`}, {"PUT", "/api/v1/namespaces/default", `{}`}, {"PATCH", "/api/v1/namespaces/default", `{}`},
		{"DELETE", "/api/v1/namespaces/default/configmaps/treasure"}, {"DELETE", "/api/v1/namespaces/default/configmaps"},
		{"GET", "/apis/tenancy.kcp.io/v1alpha1/workspaces"}, {"GET", "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster"}, {"DELETE", "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster"},
		{"GET", "/apis/none.example.com/v1/things"}, {"GET", "/apis/none.example.com/v1"}, {"GET", "/"}, {"GET", "/api"}, {"GET", "/apis"}, {"GET", "/version"}, {"GET", "/openapi/v3"},
		{"GET", "/openapi/v2"}, {"GET", "/metrics"}, {"GET", "/healthz"}, {"GET", "/readyz?verbose"}, {"GET", "/clusters/x/api"}, {"GET", "/none"},
		{"POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", `{"spec":{"resourceAttributes":{"verb":"get","resource":"secrets"}}}`},
		{"POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", `{"spec":{"namespace":"default"}}`},
		{"POST", "/apis/authentication.k8s.io/v1/tokenreviews", `{"spec":{"token":"x"}}`},
		{"POST", "/api/v1/namespaces/default/serviceaccounts/owner/token", `{}`},
		{"GET", "/api/v1/namespaces?resourceVersion=99999999"}, {"GET", "/api/v1/namespaces?continue=x"}, {"OPTIONS", "/api"}, {"HEAD", "/api"},
	}
}

// Users cannot distinguish a cluster that they may not enter from a missing one, neither by
// name nor by path.
func TestForbiddenLooksLikeMissing(t *testing.T) {
	t.Parallel()
	a, b := newTenant(t), victim(t)
	ofChild := string(b.workspace("child").name)
	there := []string{string(b.name), string(b.name) + ":child", ofChild}
	missing := []string{string(cluster.NewName()), string(b.name) + ":none", string(b.name) + ":child:none", string(cluster.NewName()) + ":child", "no:such"}
	for _, v := range append(a.visitors(), a.visitor("forger", "x.y.z")) {
		for _, q := range oracles() {
			if leftOut() {
				continue
			}
			ask := func(at string) string {
				all := ""
				for _, headers := range [][]string{{}, {"Impersonate-User", "system:admin"}} {
					got := v.send(q[0], "/clusters/"+at+q[1], q[2], append(headers, "Content-Type", "application/json")...)
					all += fmt.Sprintf("%d %s %s\n", got.code, got.body, got.header.Get("Retry-After"))
				}
				return all
			}
			want := ask(missing[0])
			for _, at := range append(missing[1:], there...) {
				if got := ask(at); got != want {
					t.Errorf("%s: %s %s of %s: %s\nbut of a cluster that does not exist: %s", v.name, q[0], q[1], at, got, want)
				}
			}
		}
	}
}

// Users who may get a workspace learn that its path is wrong.
func TestWrongPaths(t *testing.T) {
	t.Parallel()
	a := newTenant(t)
	a.workspace("child")
	a.allow("alice")
	v := a.alice()
	for at, want := range map[string]int{
		string(a.name) + ":none": 404, string(a.name) + ":none:further": 404, string(a.name) + ":child:none": 403, "root:" + string(cluster.NewName()): 404, string(cluster.NewName()) + ":none": 403,
	} {
		if got := v.send("GET", "/clusters/"+at+"/api/v1/namespaces", ""); got.code != want {
			t.Errorf("%s: %d %s", at, got.code, got.body)
		}
	}
}
