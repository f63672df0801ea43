package serve

import (
	"net/http"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// Unstored are resources whose objects are never stored, like the reviews of Kubernetes. A creation
// is a dry run: the schema and the admission rules apply, and the object that they return is the
// answer. A rule refuses writes that are not dry runs, such as an apply.
type Unstored []schema.GroupResource

// Within returns a handler that makes creations of the resources dry runs.
func (u Unstored) Within(next http.Handler) http.Handler {
	if len(u) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, ok := request.RequestInfoFrom(req.Context())
		if ok && info.Verb == "create" && info.Subresource == "" && slices.Contains(u, schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}) {
			to := *req.URL
			query := to.Query()
			query.Set("dryRun", metav1.DryRunAll)
			to.RawQuery = query.Encode()
			req = req.Clone(req.Context())
			req.URL = &to
		}
		next.ServeHTTP(w, req)
	})
}
