package edge

import (
	"net/http"

	"github.com/unforked/kcp/internal/storage/registry"
)

// WithAccept passes the Accept header of a request to the store, which can read objects in that
// form.
func WithAccept(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if ctx := registry.WithAccept(req.Context(), req.Header.Get("Accept")); ctx != req.Context() {
			req = req.WithContext(ctx)
		}
		next.ServeHTTP(w, req)
	})
}
