package edge

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/etcd/outage"
)

// WithOutages replaces 401, 403 and 404 by 503 if etcd failed to answer during the request, or
// if the path of the request leads to another cluster by now. Then the server does not know
// whether a token, role, API, namespace or cluster exists, or it looked in a cluster that is
// deleted. Clients retry after a 503, but take a refusal for final. [WithCluster] is inside.
func WithOutages(next http.Handler, resolve Resolver) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h := &outageWriter{ResponseWriter: w, resolve: resolve}
		h.req = req.WithContext(context.WithValue(outage.WithNote(req.Context()), resolvedKey{}, &h.resolved))
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(h), h.req)
	})
}

type resolvedKey struct{}

// resolved is the cluster to which a path led when the request began.
type resolved struct {
	path cluster.Path // empty if the request has none
	name cluster.Name
}

// noteResolved tells [WithOutages] to which cluster the path of the request led.
func noteResolved(ctx context.Context, p cluster.Path, n cluster.Name) {
	if note, ok := ctx.Value(resolvedKey{}).(*resolved); ok {
		*note = resolved{p, n}
	}
}

// outageWriter is a response writer that turns refusals into 503 during an outage of etcd, and
// when the path leads elsewhere.
type outageWriter struct {
	http.ResponseWriter
	req      *http.Request
	resolve  Resolver
	resolved resolved
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
	if err := outage.Noted(h.req.Context()); err != nil || h.resolved.path == "" {
		return err
	}
	// The refusal came after this process had caught up with the others.
	if now, missing := h.resolve(h.req.Context(), h.resolved.path); missing == "" && now != h.resolved.name {
		return outage.Unavailable(fmt.Sprintf("another workspace replaced the one at %s during the request; try again", h.resolved.path))
	}
	return nil
}

// Write implements [http.ResponseWriter].
func (h *outageWriter) Write(b []byte) (int, error) {
	if h.answered {
		return len(b), nil
	}
	h.begun = true
	return h.ResponseWriter.Write(b)
}
