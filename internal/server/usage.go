package server

import (
	"context"
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/request"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/resources/serve"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/sharing/usage"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/tenancy/tree"
	"github.com/unforked/kcp/internal/view"
)

// usageOfExports returns the subresource that reports what the consumers of an export store.
// s.meter is set before the first request.
func (s *Server) usageOfExports() serve.Subresource {
	return serve.Subresource{
		Resource: exports.Resource().GroupResource(), Name: usage.Subresource, Kind: apisv1alpha2.GroupVersion.WithKind("APIExportUsage"),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { s.meter.ServeHTTP(w, req) }),
	}
}

// usageOfClusters returns the subresource that reports what a logical cluster stores.
func (s *Server) usageOfClusters() serve.Subresource {
	return serve.Subresource{
		Resource: tree.LogicalClusters().GroupResource(), Name: usage.Subresource, Kind: core.GroupVersion.WithKind("LogicalClusterUsage"),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			clusters := &usage.Clusters{Feed: s.store.Feed(), Tree: s.tree, Requests: s.tallies, Compute: func(ctx context.Context, c cluster.Name, f func()) error {
				return s.computeFor(ctx, c, fair.Heavy, f)
			}}
			clusters.ServeHTTP(w, req)
		}),
	}
}

// counted counts the requests that next serves. s.tallies is set before the first request.
func (s *Server) counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { s.tallies.Count(w, req, next) })
}

// requested records that consumers use a version of an exported resource. Requests of providers
// through their views, and of the server itself, do not count.
func (s *Server) requested(ctx context.Context, of keys.Resource, version string) {
	usage.Serving(ctx, of)
	c, err := cluster.One(ctx)
	_, viewed := view.From(ctx)
	if u, ok := request.UserFrom(ctx); err == nil && !viewed && ok && u.GetName() != System().GetName() {
		s.meter.Requested(c, of, version)
	}
}
