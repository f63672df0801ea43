package server

import (
	"errors"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/controllers"
	"github.com/unforked/kcp/internal/observe/logs"
)

// runLoops starts every loop; they run until the server closes.
func (s *Server) runLoops() error {
	loops := s.loops
	if s.config.Loops != nil {
		further, err := s.config.Loops(s)
		if err != nil {
			return err
		}
		loops = append(loops, further...)
	}
	metrics := control.NewMetrics()
	if err := errors.Join(metrics.Register(legacyregistry.Register), s.caches.PublishMetrics(legacyregistry.Register), s.store.PublishMetrics(legacyregistry.Register)); err != nil {
		return err
	}
	ctx := klog.NewContext(s.ctx, logs.WithPaths(klog.Background(), s.pathOf))
	s.running.Go(func() {
		control.Runner{Metrics: metrics, Lead: s.store.Election().Lead, Tenant: s.tree.Tenant}.Run(ctx, loops...)
	})
	s.running.Go(func() {
		control.Runner{Metrics: metrics, Tenant: s.tree.Tenant}.Run(ctx, controllers.Everywhere(s.meter, s.tallies)...)
	})
	close(s.looping)
	return nil
}

// pathOf returns the path of a logical cluster for the log, or nothing if it has none.
func (s *Server) pathOf(c string) string {
	if path := string(s.tree.PathOf(cluster.Name(c))); path != c {
		return path
	}
	return ""
}

// awaitLoops is a post-start hook that returns when the loops run. So the server is not
// ready before, and not live if the loops take too long to start.
func (s *Server) awaitLoops(hook genericapiserver.PostStartHookContext) error {
	select {
	case <-s.looping:
	case <-hook.Done():
	}
	return nil
}
