package response

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/routine"
)

// WhenServed functions run when a request was answered. For a watch that is after its handler has
// returned.
func TestWhenServed(t *testing.T) {
	for _, watch := range []bool{false, true} {
		var happened []string
		handler := http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			for _, name := range []string{"outer", "inner"} {
				defer WhenServed(req.Context(), func() { happened = append(happened, name) })
				defer func() { happened = append(happened, "returned") }()
			}
			if task := routine.TaskFrom(req.Context()); task != nil {
				task.Func = func() { happened = append(happened, "served") }
			}
		})
		want := []string{"returned", "inner", "returned", "outer"}
		if watch {
			want = []string{"returned", "returned", "served", "inner", "outer"}
		}
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		routine.WithRoutine(handler, func(*http.Request, *request.RequestInfo) bool { return watch }).ServeHTTP(httptest.NewRecorder(), req)
		if diff := cmp.Diff(want, happened); diff != "" {
			t.Errorf("watch %v: %s", watch, diff)
		}
	}
}
