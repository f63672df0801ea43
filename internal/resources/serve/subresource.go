package serve

import (
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// A Subresource is a subresource that a handler serves, instead of the storage of its
// resource, in every version and in every cluster. Without a handler it says how requests
// for the subresource are treated, and the storage serves them.
type Subresource struct {
	// Resource has the subresource, such as "pods". It need not be served itself.
	Resource schema.GroupResource
	// Name is the name of the subresource, such as "log".
	Name string
	// Kind is the kind that a get returns. If it is set, the subresource is in the discovery of
	// the version of the kind, which must be in the group of the resource.
	Kind schema.GroupVersionKind
	// LongRunning requests have no timeout, and count as watches do.
	LongRunning bool
	// Handler gets the requests that the user may make. Their context has the user, the
	// logical cluster and the RequestInfo.
	Handler http.Handler
}

// Subresources are subresources that handlers serve.
type Subresources []Subresource

// Within returns a handler that serves the subresources, and passes other requests to next.
func (all Subresources) Within(next http.Handler) http.Handler {
	if len(all) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if info, ok := request.RequestInfoFrom(req.Context()); ok {
			if s := all.find(info, func(s *Subresource) bool { return s.Handler != nil }); s != nil {
				s.Handler.ServeHTTP(w, req)
				return
			}
		}
		next.ServeHTTP(w, req)
	})
}

// LongRunning adds the long-running subresources to a check of requests.
func (all Subresources) LongRunning(check request.LongRunningRequestCheck) request.LongRunningRequestCheck {
	return func(req *http.Request, info *request.RequestInfo) bool {
		return all.find(info, func(s *Subresource) bool { return s.LongRunning }) != nil || check(req, info)
	}
}

// find returns the first subresource of a request for which is holds. Several may have one name.
func (all Subresources) find(info *request.RequestInfo, is func(*Subresource) bool) *Subresource {
	if !info.IsResourceRequest || info.Subresource == "" || info.Name == "" {
		return nil
	}
	for i := range all {
		if s := &all[i]; s.Name == info.Subresource && s.Resource.Resource == info.Resource && s.Resource.Group == info.APIGroup && is(s) {
			return s
		}
	}
	return nil
}
