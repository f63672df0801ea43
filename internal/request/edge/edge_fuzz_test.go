package edge

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/unforked/kcp/internal/cluster"
)

// FuzzEdge sends request targets to the edge. A request that passes has a valid cluster name,
// which is one segment of a key, and a path without "." and ".." segments.
func FuzzEdge(f *testing.F) {
	for _, seed := range []string{
		"/clusters/root/api", "/clusters/root:a:b/api/v1", "/clusters/*/api", "/clusters/a/../b/api", "/clusters/a%2Fb/api", "/clusters/%2e%2e/x", "/clusters//x",
		"/clusters/system:admin/api", "/clusters/a/clusters/b/api", "/clusters/ab%00/x", "/clusters/root:gone/api", "/clusters/a\u00e4/x", "/clusters/x;y/z", "/clusters/xy?a=%2F..",
		"//clusters/xy/z", "/api/v1", "/", "", "*", "/clusters/xy/a/%2e./b", "/clusters/xy/metrics", "https://h/clusters/ab/api", "/clusters/" + strings.Repeat("ab:", 4000) + "c",
	} {
		f.Add(seed, "GET", "")
	}
	f.Add("/api/v1/namespaces", "POST", "eyJhbGciOiJub25lIn0.eyJrdWJlcm5ldGVzLmlvIjp7ImNsdXN0ZXJOYW1lIjoiYWJjIn19.x")
	f.Add("/api/v1/namespaces", "GET", "e30.eyJrdWJlcm5ldGVzLmlvIjp7ImNsdXN0ZXJOYW1lIjoiLi4vYSJ9fQ.x")
	resolve := func(_ context.Context, p cluster.Path) (cluster.Name, string) {
		n, words := p.Split()
		if len(words) > 0 {
			if words[len(words)-1] == "gone" {
				return n, "gone"
			}
			n = cluster.Name(words[len(words)-1] + "x")
		}
		return n, ""
	}
	f.Fuzz(func(t *testing.T, target, method, token string) {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			return
		}
		req := (&http.Request{Method: method, URL: u, RequestURI: target, Header: http.Header{"Authorization": {"Bearer " + token}}, Body: http.NoBody}).WithContext(t.Context())
		edge := WithCluster(WithoutWildcardWrites(http.HandlerFunc(func(_ http.ResponseWriter, got *http.Request) {
			c, ok := cluster.From(got.Context())
			checkPast(t, u, got, c, ok)
		})), resolve, nil)
		w := httptest.NewRecorder()
		edge.ServeHTTP(w, req)
		if w.Code >= 500 && w.Code != http.StatusNotImplemented {
			t.Errorf("%q is answered %d", target, w.Code)
		}
		if req.URL.Path != u.Path {
			t.Error("the request that came was changed")
		}
	})
}

func checkPast(t *testing.T, u *url.URL, got *http.Request, c cluster.Name, ok bool) {
	t.Helper()
	if ok && c != cluster.All {
		if n, err := cluster.ParseName(string(c)); err != nil || n != c || strings.ContainsAny(string(c), "/*\x00 ") || c == "-" || c == "" {
			t.Errorf("%q is for cluster %q: %v", u, c, err)
		}
	}
	if c == cluster.All && got.Method != http.MethodGet {
		t.Errorf("%s %q is for all clusters", got.Method, u)
	}
	if strings.HasPrefix(u.Path, Prefix) != (ok && got.URL.Path != u.Path) && !(ok && got.Header.Get("Authorization") != "") {
		t.Errorf("%q is for cluster %q, %t, at %q", u, c, ok, got.URL.Path)
	}
	if HasDotSegment(got.URL.Path) {
		t.Errorf("%q gets past as %q", u, got.URL.Path)
	}
	// The escaped and the unescaped path must agree.
	again, err := url.ParseRequestURI(got.RequestURI)
	if ok && (err != nil || again.Path != got.URL.Path || got.URL.EscapedPath() != again.EscapedPath()) && !strings.HasPrefix(got.URL.Path, "//") {
		t.Errorf("%q has the path %q but is %q: %v", u, got.URL.Path, got.RequestURI, err)
	}
}
