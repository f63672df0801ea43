package record

import (
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/unforked/kcp/internal/cluster"
)

// WithSpan adds the logical cluster to the trace span of a request.
func WithSpan(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if span := trace.SpanFromContext(req.Context()); span.IsRecording() {
			if c, ok := cluster.From(req.Context()); ok {
				span.SetAttributes(attribute.String(cluster.Annotation, string(c)))
			}
		}
		h.ServeHTTP(w, req)
	})
}
