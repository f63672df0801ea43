package server_test

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"

	otlp "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/internal/server"
)

// A spansCollector is a collector of traces.
type spansCollector struct {
	otlp.UnimplementedTraceServiceServer
	mu       sync.Mutex
	clusters map[string]string // by span name
}

func (c *spansCollector) Export(_ context.Context, r *otlp.ExportTraceServiceRequest) (*otlp.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range r.GetResourceSpans() {
		for _, scope := range of.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				for _, a := range span.GetAttributes() {
					if a.GetKey() == auditCluster {
						c.clusters[a.GetValue().GetStringValue()] = span.GetName()
					}
				}
			}
		}
	}
	return &otlp.ExportTraceServiceResponse{}, nil
}

// Traces of requests are sent to an OpenTelemetry collector, with the logical cluster.
func TestTracing(t *testing.T) {
	t.Parallel()
	got := &spansCollector{clusters: map[string]string{}}
	listener := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	receiver := grpc.NewServer()
	otlp.RegisterTraceServiceServer(receiver, got)
	ended := make(chan error, 1)
	go func() { ended <- receiver.Serve(listener) }()
	t.Cleanup(func() { receiver.Stop(); <-ended })

	o := server.DefaultOperation()
	o.Tracing.ConfigFile = filepath.Join(t.TempDir(), "tracing.yaml")
	write(t, o.Tracing.ConfigFile, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nsamplingRatePerMillion: 1000000\nendpoint: "+listener.Addr().String()+"\n"))
	s := operate(t, t.TempDir(), o)
	if _, err := s.client(t, "root", "").CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the trace of a request to root is exported", func() bool {
		got.mu.Lock()
		defer got.mu.Unlock()
		return got.clusters["root"] != ""
	})
}
