package server

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/cluster"
)

// InProcess returns a configuration for clients in this process, which act as u
// in the cluster of that name or path, or in all.
func (s *Server) InProcess(at string, u user.Info) *rest.Config {
	return &rest.Config{
		Host:      "http://kcp" + clustersPrefix + at,
		Transport: s.transport(s.ctx, u),
		QPS:       -1,
	}
}

// transport returns one to the server from its own process, until stop ends.
func (s *Server) transport(stop context.Context, u user.Info) http.RoundTripper {
	return &inProcess{handler: s.generic.Handler, user: u, stop: stop, running: &s.requests, grace: s.config.Requests.ShutdownWatchTerminationGracePeriod}
}

// ownLoops returns a configuration for the server's own loops, for which a cluster is
// never offline.
func (s *Server) ownLoops(c cluster.Name) *rest.Config {
	config := s.InProcess(string(c), System())
	config.Transport = s.transport(context.WithValue(s.ctx, ownLoopKey{}, true), System())
	return config
}

type ownLoopKey struct{}

// isOwnLoop reports whether a request comes from one of the server's own loops.
func isOwnLoop(ctx context.Context) bool { return ctx.Value(ownLoopKey{}) != nil }

// System is who the server's own loops are.
func System() user.Info {
	return &user.DefaultInfo{Name: "system:kcp", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}
}

// MakeCluster makes a cluster that no workspace leads to, unless it exists.
func (s *Server) MakeCluster(ctx context.Context, c cluster.Name) error {
	if c.System() {
		return fmt.Errorf("the names that begin with %q are the server's own", "system:")
	}
	if cluster.Path(c).Join("x").InHome() {
		return fmt.Errorf("%q begins the paths of home workspaces, so that nothing below a logical cluster of this name would be found; choose another", c)
	}
	return s.workspaces.MakeCluster(ctx, c)
}

// Remove deletes a cluster with everything in and below it, and its Workspace if it
// has one, and returns when nothing is left.
func (s *Server) Remove(ctx context.Context, c cluster.Name) error {
	return s.workspaces.Remove(ctx, c)
}
