package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"k8s.io/klog/v2"
)

// startProfiler serves profiles at ProfilerAddress, without authentication.
func (s *Server) startProfiler(ctx context.Context) error {
	at := s.config.ProfilerAddress
	if at == "" {
		return nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", at)
	if err != nil {
		return fmt.Errorf("--profiler-address %s: %w; choose another, such as 127.0.0.1:6060", at, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	profiler := &http.Server{Handler: mux, ReadHeaderTimeout: 30 * time.Second}
	stop := context.AfterFunc(s.ctx, func() { _ = profiler.Close() })
	s.running.Go(func() {
		defer stop()
		if err := profiler.Serve(listener); s.ctx.Err() == nil {
			klog.FromContext(s.ctx).Error(err, "The profiler has stopped")
		}
	})
	return nil
}
