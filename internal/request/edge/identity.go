package edge

import (
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp/internal/resources/serve"
)

// withIdentity passes a request to next. If the resource in its path has an identity, as in
// /apis/example.com/v1/widgets:<identity>, it moves the identity into the context.
func withIdentity(w http.ResponseWriter, req *http.Request, next http.Handler) {
	path, identity, ok := cutIdentity(req.URL.Path)
	switch {
	case !ok:
	case identity == "":
		Refuse(w, req, apierrors.NewBadRequest("the identity after the resource is empty; status.identityHash of the APIExport has it"))
		return
	default:
		c := req.WithContext(serve.WithRequestedIdentity(req.Context(), identity))
		u := *req.URL
		u.Path = path
		c.URL, c.RequestURI = &u, u.RequestURI()
		req = c
	}
	next.ServeHTTP(w, req)
}

// cutIdentity removes the identity from the resource in a path. It reports whether there was a
// colon after the resource.
func cutIdentity(path string) (without, identity string, ok bool) {
	if !strings.Contains(path, ":") {
		return path, "", false // nearly all
	}
	segments := strings.Split(path, "/")
	at := 0
	switch {
	case len(segments) > 4 && segments[1] == "apis":
		at = 4
	case len(segments) > 3 && segments[1] == "api":
		at = 3
	default:
		return path, "", false
	}
	if segments[at] == "namespaces" && len(segments) > at+2 {
		at += 2
	}
	if segments[at], identity, ok = strings.Cut(segments[at], ":"); !ok {
		return path, "", false
	}
	return strings.Join(segments, "/"), identity, true
}
