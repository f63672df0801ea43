package server_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// ways returns targets that might lead from one cluster into another. {a} is the cluster of
// the attacker, {b} that of the victim.
func ways() []string {
	const maps = "/api/v1/namespaces/default/configmaps"
	return []string{
		"/clusters/{b}" + maps,
		"/clusters/{b}" + maps + "/treasure",
		"/clusters/{a}/../{b}" + maps,
		"/clusters/{a}/%2e%2e/{b}" + maps,
		"/clusters/{a}%2f..%2f{b}" + maps,
		"/clusters/{a}/../../clusters/{b}" + maps,
		"/clusters/{a}/clusters/{b}" + maps,
		"/clusters/{a}%2Fclusters%2F{b}" + maps,
		"/clusters/{a}//clusters/{b}" + maps,
		"/clusters//{b}" + maps,
		"/clusters/%2f{b}" + maps,
		"//clusters/{b}" + maps,
		"/%63lusters/{b}" + maps,
		"/%63lusters/{a}%2F..%2F{b}" + maps,
		"/clusters/{a}/%2e%2e/%2e%2e/clusters%2f{b}" + maps,
		"/./clusters/{b}" + maps,
		"/clusters/./{b}" + maps,
		"/clusters/{a};{b}" + maps,
		"/clusters/{a};/../{b}" + maps,
		"/clusters/{a},{b}" + maps,
		"/clusters/{a}:{b}" + maps,
		"/clusters/{a}%3A{b}" + maps,
		"/clusters/{a}%00{b}" + maps,
		"/clusters/{a}%0a{b}" + maps,
		"/clusters/{a}?cluster={b}",
		"/clusters/{a}%3f/{b}" + maps,
		"/clusters/{a}%23/{b}" + maps,
		"/clusters/*" + maps,
		"/clusters/%2a" + maps,
		"/clusters/%2A/api/v1/configmaps",
		"/clusters/*/api/v1/configmaps",
		"/clusters/*/api/v1/configmaps?watch=1&timeoutSeconds=1",
		"/clusters/*/api/v1/secrets?labelSelector=treasure",
		"/clusters/-" + maps,
		"/clusters/~" + maps,
		"/clusters/" + maps,
		"/clusters" + maps,
		"/clusters/%20{b}" + maps,
		"/clusters/{b}%20" + maps,
		"/clusters/" + strings.Repeat("a", 64) + maps,
		"/clusters/" + strings.Repeat("a:", 5000) + "a" + maps,
		"/clusters/\u00e4" + maps,
		"/clusters/\uff41\uff42" + maps,
		"/clusters/%c3%a4" + maps,
		"/clusters/%ff%fe" + maps,
		"/clusters/{a}/services/apiexport/{b}" + maps,
		"/services/apiexport/{b}/x/clusters/*" + maps,
		"/clusters/system:admin/apis/rbac.authorization.k8s.io/v1/clusterroles",
		"/clusters/system%3Aadmin/api/v1/secrets",
		"/clusters/system:shard/api/v1/namespaces",
		"/clusters/system:/api/v1/namespaces",
		"/clusters/system:admin:{b}" + maps,
		"/clusters/root:{b}" + maps,
		"/clusters/root/../{b}" + maps,
		"/clusters/{a}/api/v1/namespaces/../../{b}/default/configmaps",
		"/clusters/{a}/api/v1/namespaces/../configmaps",
		"/clusters/{a}/api/v1/namespaces/%2e%2e/configmaps",
		"/clusters/{a}/api/v1/namespaces/..%2f{b}%2fdefault/configmaps",
		"/clusters/{a}/api/v1/namespaces/default/configmaps/..%2f..%2f{b}%2fdefault%2ftreasure",
		"/clusters/{a}/api/v1/namespaces/default/configmaps/%2e%2e",
		"/clusters/{a}/api/v1/namespaces/./configmaps",
		"/clusters/{a}/api/v1/namespaces//configmaps/treasure",
		"/clusters/{a}/api/v1/namespaces/*/configmaps",
		"/clusters/{a}/api/v1/namespaces/-/configmaps",
		"/clusters/{a}/api/v1/namespaces/%00/configmaps",
		"/clusters/{a}/api/v1/namespaces/default/configmaps/%00",
		"/clusters/{a}/api/v1/namespaces/default/configmaps/%ff",
		"/clusters/{a}/api/v1/watch/namespaces/../configmaps?timeoutSeconds=1",
		"/clusters/{a}/apis/core.kcp.io/v1alpha1/logicalclusters/%2e%2e%2f{b}%2fcluster",
		"/clusters/{a}/apis/tenancy.kcp.io/v1alpha1/workspaces/..",
		"/clusters/{a}/apis/tenancy.kcp.io/v1alpha1/workspaces:{b}",
		"/clusters/{a}/apis/tenancy.kcp.io/v1alpha1/workspaces:",
		"/clusters/{a}/apis/../api/v1/configmaps",
		"/clusters/{a}/apis//v1/configmaps",
		"/clusters/{a}/apis/-/core/v1/configmaps",
	}
}

func TestNoWayIntoAnotherCluster(t *testing.T) {
	t.Parallel()
	a, b := newTenant(t), victim(t)
	visitors := a.visitors()
	for _, way := range ways() {
		target := strings.NewReplacer("{a}", string(a.name), "{b}", string(b.name)).Replace(way)
		for _, v := range visitors {
			for _, v.http1 = range []bool{false, true} {
				for _, method := range []string{"GET", "HEAD", "PUT", "DELETE", "PATCH", "POST", "OPTIONS", "TRACE", "get", "PROPFIND"} {
					if leftOut() {
						continue
					}
					got := v.send(method, target, "{}", "Content-Type", "application/json")
					if got.broken() {
						t.Errorf("%s: %s %.200s: %d %.500s", v.name, method, target, got.code, got.body)
					}
					if v.name != "owner" && got.ok() {
						t.Errorf("%s: %s %.200s was answered: %d %.500s", v.name, method, target, got.code, got.body)
					}
				}
			}
		}
	}
}

// Request lines that no client library sends, such as absolute URLs and CONNECT.
func TestOddRequestLines(t *testing.T) {
	t.Parallel()
	a, b := newTenant(t), victim(t)
	v := a.owner()
	const maps = "/api/v1/namespaces/default/configmaps"
	for _, line := range []string{
		"GET https://kcp" + b.path(maps), "GET http://other.example" + b.path(maps), "GET kcp://x/clusters/*/api/v1/configmaps",
		"GET //" + "x" + b.path(maps), "GET https://user:pass@kcp" + b.path(maps), "GET https:" + b.path(maps),
		"CONNECT kcp:443", "CONNECT " + b.path(maps), "GET " + b.path(maps) + "#x", "GET " + a.path("#") + b.path(maps),
		"GET \\clusters\\" + string(b.name), "GET /clusters/%", "GET /clusters/%zz/api", "GET /clusters/" + string(b.name) + "\t/api",
		"GET " + a.path("/api/v1/namespaces/default/configmaps\x00"), "PRI *", " GET /", "GET", "",
	} {
		got := v.raw(line + " HTTP/1.1\r\nHost: kcp\r\nConnection: close\r\nAuthorization: Bearer " + v.token + "\r\n\r\n")
		if status := strings.Fields(got); len(status) > 1 && (status[1] < "400" || status[1] >= "500") {
			t.Errorf("%q: %.300s", line, got)
		}
	}
	// Ambiguous lengths and hosts, and a request inside a body.
	for _, extra := range []string{
		"Content-Length: 5\r\nContent-Length: 6\r\n", "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked, identity\r\n",
		"Host: other\r\n", "Content-Length: -1\r\n", "X-Remote-User: kcp-admin\r\nX-Remote-Group: system:masters\r\n",
		"X-Original-Url: " + b.path(maps) + "\r\nX-Rewrite-Url: " + b.path(maps) + "\r\n", "X-Forwarded-Prefix: " + b.path("") + "\r\n",
	} {
		got := v.raw("GET " + b.path(maps) + " HTTP/1.1\r\nHost: kcp\r\nConnection: close\r\n" + extra + "\r\n0\r\n\r\nGET " + b.path(maps) + " HTTP/1.1\r\nHost: kcp\r\n\r\n")
		if strings.Contains(got, "200 OK") || strings.Contains(got, " 500 ") {
			t.Errorf("%q: %.300s", extra, got)
		}
	}
}

// Endpoints of the whole process are forbidden through clusters.
func TestNothingOfTheProcess(t *testing.T) {
	t.Parallel()
	a := newTenant(t)
	for _, v := range a.visitors() {
		for _, p := range []string{
			"/metrics", "/metrics/slis", "/metrics/", "/debug/pprof", "/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile?seconds=1", "/debug/pprof/cmdline",
			"/debug/flags/v", "/debug/api_priority_and_fairness/dump_requests", "/logs", "/logs/", "/configz", "/flagz", "/statusz", "/debug/controllers/",
			"/metrics%2f", "/%6detrics", "//metrics", "/./metrics", "/debug%2fpprof%2fheap", "//debug/pprof/heap", "/a/../debug/pprof/heap", "/debug//pprof/heap",
		} {
			for _, prefix := range []string{"", a.path(""), "/clusters/root", "/clusters/*", "/clusters/" + string(a.name) + "/clusters/" + string(a.name), "/clusters/no-such"} {
				for _, method := range []string{"GET", "PUT", "POST"} {
					if leftOut() {
						continue
					}
					if got := v.send(method, prefix+p, ""); got.ok() || got.broken() {
						t.Errorf("%s: %s %s: %d %.200s", v.name, method, prefix+p, got.code, got.body)
					}
				}
			}
		}
	}
}

// Users who may not enter a cluster get only its health.
func TestStrangersSeeNothing(t *testing.T) {
	t.Parallel()
	a, b := newTenant(t), victim(t)
	open := []string{"/healthz", "/livez", "/readyz", "/healthz?verbose", "/readyz?verbose&exclude=etcd"}
	closed := []string{
		"/", "/api", "/api/", "/api/v1", "/apis", "/apis/", "/apis/tenancy.kcp.io", "/apis/tenancy.kcp.io/v1alpha1", "/openapi/v2", "/openapi/v3",
		"/openapi/v3/api/v1", "/version", "/version/", "/healthz/etcd", "/livez/ping", "/readyz/feed", "/healthz/", "/.well-known/openid-configuration",
		"/openid/v1/jwks", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/swagger.json", "/ui", "/index.html", "/static", "/favicon.ico",
	}
	for _, v := range a.visitors() {
		for _, p := range open {
			if got := v.send("GET", b.path(p), ""); got.code != http.StatusOK {
				t.Errorf("%s: %s: %d %.200s", v.name, p, got.code, got.body)
			}
		}
		for _, p := range closed {
			if got := v.send("GET", b.path(p), ""); got.code != http.StatusForbidden {
				t.Errorf("%s: %s: %d %.200s", v.name, p, got.code, got.body)
			}
			prefixes := []string{"/clusters/*"}
			if v.name != "owner" { // a token selects the owner's cluster
				prefixes = append(prefixes, "")
			}
			for _, prefix := range prefixes {
				if got := v.send("GET", prefix+p, ""); !slices.Contains([]int{http.StatusForbidden, http.StatusNotFound}, got.code) {
					t.Errorf("%s: %s%s: %d %.200s", v.name, prefix, p, got.code, got.body)
				}
			}
		}
	}
}
