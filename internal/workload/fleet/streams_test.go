package fleet

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/unforked/kcp/internal/resources/serve"
)

// Followed logs and open connections to containers have no timeout, and the storage of pods serves them.
func TestStreamsHaveNoTimeout(t *testing.T) {
	all := serve.Subresources(longRunning())
	is := all.LongRunning(func(*http.Request, *request.RequestInfo) bool { return false })
	for name, want := range map[string]bool{"log": true, "exec": true, "attach": true, "portforward": true, "eviction": false} {
		info := &request.RequestInfo{IsResourceRequest: true, Verb: "get", APIVersion: "v1", Resource: "pods", Subresource: name, Namespace: "default", Name: "web"}
		req := httptest.NewRequest(http.MethodGet, "/api/v1/namespaces/default/pods/web/"+name, nil)
		if got := is(req, info); got != want {
			t.Errorf("%s has no timeout: %v", name, got)
		}
		served := false
		all.Within(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true })).ServeHTTP(httptest.NewRecorder(), req.WithContext(request.WithRequestInfo(req.Context(), info)))
		if !served {
			t.Errorf("the storage does not serve %s", name)
		}
	}
}
