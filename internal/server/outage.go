package server

import (
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/unforked/kcp/internal/store"
)

// withOutages answers 503 in the place of a refusal that is for want of evidence: etcd
// did not answer when it was asked whether there is a token, a role, an API, a namespace
// or a cluster. Clients would take a refusal for final.
func withOutages(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := store.WithOutage(req.Context())
		req = req.WithContext(ctx)
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(&honest{ResponseWriter: w, req: req}), req)
	})
}

// honest is a response that is no refusal when nobody knows.
type honest struct {
	http.ResponseWriter
	req      *http.Request
	begun    bool
	answered bool // with 503: what follows is dropped
}

var _ responsewriter.UserProvidedDecorator = (*honest)(nil)

// Unwrap implements [responsewriter.UserProvidedDecorator].
func (h *honest) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// WriteHeader implements [http.ResponseWriter].
func (h *honest) WriteHeader(status int) {
	if h.answered {
		return
	}
	if why := h.outage(status); why != nil {
		h.answered, h.begun = true, true
		for _, name := range []string{"Content-Length", "Content-Encoding", "Content-Type", "Www-Authenticate"} {
			h.Header().Del(name)
		}
		refuse(h.ResponseWriter, h.req, why)
		return
	}
	h.begun = h.begun || status >= 200
	h.ResponseWriter.WriteHeader(status)
}

func (h *honest) outage(status int) error {
	if h.begun || status != http.StatusUnauthorized && status != http.StatusForbidden && status != http.StatusNotFound {
		return nil
	}
	return store.Outage(h.req.Context())
}

// Write implements [http.ResponseWriter].
func (h *honest) Write(b []byte) (int, error) {
	if h.answered {
		return len(b), nil
	}
	h.begun = true
	return h.ResponseWriter.Write(b)
}

// outages is withOutages where etcd may be out of reach: not in this process.
func (s *Server) outages(next http.Handler) http.Handler {
	if !s.store.Several() {
		return next
	}
	return withOutages(next)
}
