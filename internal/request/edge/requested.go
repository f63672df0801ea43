package edge

import (
	"context"
	"net/http"
	"net/url"
)

type requestedKey struct{}

// withRequested stores the URL that the client requested.
func withRequested(ctx context.Context, u *url.URL) context.Context {
	return context.WithValue(ctx, requestedKey{}, u)
}

// WithRequestedURL gives the audit filters inside h the URL that the client requested.
// [WithServedURL] restores the URL without the cluster for the handlers inside them.
func WithRequestedURL(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		requested, ok := req.Context().Value(requestedKey{}).(*url.URL)
		if !ok {
			h.ServeHTTP(w, req)
			return
		}
		shown := req.WithContext(context.WithValue(req.Context(), servedKey{}, req.URL))
		shown.URL = requested
		h.ServeHTTP(w, shown)
	})
}

type servedKey struct{}

// WithServedURL restores the URL that [WithRequestedURL] replaced.
func WithServedURL(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		served, ok := req.Context().Value(servedKey{}).(*url.URL)
		if !ok {
			h.ServeHTTP(w, req)
			return
		}
		inside := req.WithContext(req.Context())
		inside.URL = served
		h.ServeHTTP(w, inside)
	})
}
