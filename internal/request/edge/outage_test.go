package edge

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/etcd/outage"
)

// TestRefusalsThatAreNotFinal expects 503 in place of a refusal if etcd failed, or if the path
// leads to another cluster when the request is answered.
func TestRefusalsThatAreNotFinal(t *testing.T) {
	const first, second = cluster.Name("first"), cluster.Name("second")
	for name, tc := range map[string]struct {
		at     string
		after  cluster.Name // where the path leads after the request was decided; empty if nowhere
		failed bool
		code   int
		want   int
	}{
		"replaced and missing":      {"/clusters/root:team/api", second, false, 404, 503},
		"replaced and forbidden":    {"/clusters/root:team/api", second, false, 403, 503},
		"replaced and in conflict":  {"/clusters/root:team/api", second, false, 409, 409},
		"the same":                  {"/clusters/root:team/api", first, false, 404, 404},
		"deleted":                   {"/clusters/root:team/api", "", false, 403, 403},
		"by the name":               {"/clusters/first/api", second, false, 404, 404},
		"without a cluster":         {"/api", second, false, 404, 404},
		"etcd failed":               {"/clusters/first/api", first, true, 401, 503},
		"etcd failed, but answered": {"/clusters/root:team/api", second, true, 200, 200},
	} {
		t.Run(name, func(t *testing.T) {
			now := first
			resolve := func(_ context.Context, p cluster.Path) (cluster.Name, string) {
				if n, direct := p.Name(); direct {
					return n, ""
				}
				if now == "" {
					return cluster.Root, "team"
				}
				return now, ""
			}
			served := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				now = tc.after
				if tc.failed {
					outage.Note(req.Context(), context.DeadlineExceeded)
				}
				w.WriteHeader(tc.code)
			})
			w := httptest.NewRecorder()
			WithOutages(WithCluster(served, resolve, nil), resolve).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", tc.at, nil))
			if w.Code != tc.want || (w.Code == 503) != (w.Header().Get("Retry-After") != "") {
				t.Errorf("answered %d, with Retry-After: %q", w.Code, w.Header().Get("Retry-After"))
			}
		})
	}
}
