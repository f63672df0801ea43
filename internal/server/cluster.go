package server

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/network/inprocess"
	"github.com/unforked/kcp/internal/request/edge"
)

// InProcess returns a configuration for clients in this process that act as u. at is the
// name or path of a cluster, or "*" for all clusters. Requests end when the server closes.
func (s *Server) InProcess(at string, u user.Info) *rest.Config {
	return &rest.Config{
		Host:      "http://kcp" + edge.Prefix + at,
		Transport: s.transport(s.ctx, u),
		QPS:       -1,
	}
}

// transport returns an in-process transport to the server. Requests end with stop.
func (s *Server) transport(stop context.Context, u user.Info) http.RoundTripper {
	return &inprocess.Transport{Handler: s.generic.Handler, User: u, Stop: stop, Running: &s.requests, Grace: s.config.Requests.ShutdownWatchTerminationGracePeriod}
}

// ownLoops returns a configuration for the server's own loops in cluster c. Inactive
// clusters serve its requests, too.
func (s *Server) ownLoops(c cluster.Name) *rest.Config {
	config := s.InProcess(string(c), System())
	config.Transport = s.transport(inprocess.ForLoop(s.ctx), System())
	return config
}

// System returns the user of the server's own loops. It is in system:masters.
func System() user.Info {
	return &user.DefaultInfo{Name: "system:kcp", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}
}

// MakeCluster creates a cluster without a Workspace, unless it exists.
func (s *Server) MakeCluster(ctx context.Context, c cluster.Name) error {
	if c.System() {
		return fmt.Errorf("names that begin with %q are reserved for the server", "system:")
	}
	if cluster.Path(c).Join("x").InHome() {
		return fmt.Errorf("%q is the first segment of the paths of home workspaces, so workspaces below a logical cluster of this name could not be found; choose another name", c)
	}
	return s.workspaces.MakeCluster(ctx, c)
}

// Remove deletes a cluster, everything in it, all clusters below it and its Workspace, if
// there is one. It returns when all of that is deleted.
func (s *Server) Remove(ctx context.Context, c cluster.Name) error {
	return s.remover.Remove(ctx, c)
}
