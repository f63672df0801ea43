package server

import (
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/unforked/kcp/internal/cluster"
)

// withSpanCluster has the trace of a request say which logical cluster it is for.
func withSpanCluster(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if span := trace.SpanFromContext(req.Context()); span.IsRecording() {
			if c, ok := cluster.From(req.Context()); ok {
				span.SetAttributes(attribute.String(cluster.Annotation, string(c)))
			}
		}
		h.ServeHTTP(w, req)
	})
}
