package edge

import (
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/unforked/kcp/internal/etcd"
)

// WithOutages replaces 401, 403 and 404 by 503 if etcd failed to answer during the request.
// Then the server does not know whether a token, role, API, namespace or cluster exists.
// Clients retry after a 503, but take a refusal for final.
func WithOutages(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := etcd.WithOutage(req.Context())
		req = req.WithContext(ctx)
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(&outageWriter{ResponseWriter: w, req: req}), req)
	})
}

// outageWriter is a response writer that turns refusals into 503 during an outage of etcd.
type outageWriter struct {
	http.ResponseWriter
	req      *http.Request
	begun    bool
	answered bool // with 503; later writes are dropped
}

var _ responsewriter.UserProvidedDecorator = (*outageWriter)(nil)

// Unwrap implements [responsewriter.UserProvidedDecorator].
func (h *outageWriter) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// WriteHeader implements [http.ResponseWriter].
func (h *outageWriter) WriteHeader(status int) {
	if h.answered {
		return
	}
	if why := h.outage(status); why != nil {
		h.answered, h.begun = true, true
		for _, name := range []string{"Content-Length", "Content-Encoding", "Content-Type", "Www-Authenticate"} {
			h.Header().Del(name)
		}
		Refuse(h.ResponseWriter, h.req, why)
		return
	}
	h.begun = h.begun || status >= 200
	h.ResponseWriter.WriteHeader(status)
}

func (h *outageWriter) outage(status int) error {
	if h.begun || status != http.StatusUnauthorized && status != http.StatusForbidden && status != http.StatusNotFound {
		return nil
	}
	return etcd.Outage(h.req.Context())
}

// Write implements [http.ResponseWriter].
func (h *outageWriter) Write(b []byte) (int, error) {
	if h.answered {
		return len(b), nil
	}
	h.begun = true
	return h.ResponseWriter.Write(b)
}
