package server

import (
	"context"
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/request"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/bind"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/serve"
	"github.com/unforked/kcp/internal/usage"
	"github.com/unforked/kcp/internal/view"
)

// usageOfExports returns the subresource that reports what the consumers of an export store.
// s.meter is set before the first request.
func (s *Server) usageOfExports() serve.Subresource {
	return serve.Subresource{
		Resource: bind.ExportResource().GroupResource(), Name: usage.Subresource, Kind: apisv1alpha2.GroupVersion.WithKind("APIExportUsage"),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { s.meter.ServeHTTP(w, req) }),
	}
}

// requested records that consumers use a version of an exported resource. Requests of providers
// through their views, and of the server itself, do not count.
func (s *Server) requested(ctx context.Context, of keys.Resource, version string) {
	c, err := cluster.One(ctx)
	_, viewed := view.From(ctx)
	if u, ok := request.UserFrom(ctx); err == nil && !viewed && ok && u.GetName() != System().GetName() {
		s.meter.Requested(c, of, version)
	}
}
