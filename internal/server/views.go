package server

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/observe/record"
	"github.com/unforked/kcp/internal/request/edge"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/discovery"
	"github.com/unforked/kcp/internal/sharing/bind"
	"github.com/unforked/kcp/internal/sharing/evolve"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/sharing/virtual"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/tenancy/tree"
	"github.com/unforked/kcp/internal/view"
)

// newViews returns the views, those of extensions included. They can be used after assemble.
func (s *Server) newViews() (*view.Views, error) {
	guard := record.DecisiveAs(record.ViewSteps, s.authorizers())
	s.lifecycles = view.NewLifecycles(view.LifecycleConfig{
		Guard: guard, Authorizer: record.Decisive(s.authorizers()), Discovery: s.viewedClusters(), Permissions: s.permissions,
		LogicalCluster: func(ctx context.Context, c cluster.Name) (*core.LogicalCluster, error) {
			return s.workspaces.LogicalCluster(ctx, c)
		},
	})
	s.exports = view.NewExports(view.ExportsConfig{
		Guard: guard, APIs: func() *bind.APIs { return s.apis },
		Epoch:   func() values.Epoch { return s.store.Epoch() },
		CatchUp: func(ctx context.Context) error { return s.store.Feed().CatchUp(ctx) },
		Limit: func(ctx context.Context, at cluster.Name, a authorizer.Attributes) (bool, error) {
			return s.authz.Limits(ctx, at, a)
		},
		Discovery: func(ctx context.Context, shape *catalog.Shape, claimed map[schema.GroupResource][]string) (http.Handler, error) {
			bindings, _ := s.given.Of(cluster.Root).Find(bind.BindingResource().GroupResource())
			only := map[schema.GroupResource][]string{bind.BindingResource().GroupResource(): {"get", "list", "watch"}}
			maps.Copy(only, claimed)
			return s.discovery.ViewedOnce(ctx, catalog.NewShape(append(slices.Clone(shape.All()), bindings)...), only)
		},
	})
	s.schemas = view.NewSchemas(view.SchemasConfig{
		Guard: guard, APIs: func() *bind.APIs { return s.apis },
		Discovery: func(ctx context.Context) (http.Handler, error) {
			gr := exports.SchemaResource().GroupResource()
			schemas, _ := s.given.Of(cluster.Root).Find(gr)
			return s.discovery.ViewedOnce(ctx, catalog.NewShape(schemas), map[schema.GroupResource][]string{gr: {"get", "list", "watch"}})
		},
	})
	checks := &view.Checks{Guard: guard, Checker: func() *evolve.Checker { return s.checker }}
	own := append(s.lifecycles.Views(), s.exports, s.schemas, checks, view.NewReplication(s.exports, func() *virtual.Storage { return s.virtual }, s.cachedContent))
	return view.New(legacyscheme.Codecs, append(own, s.config.Views...)...)
}

// cachedContent serves the discovery of the view of a ClusterCachedResource.
func (s *Server) cachedContent(ctx context.Context, c *catalog.Content) (http.Handler, error) {
	return s.discovery.ViewedOnce(ctx, catalog.NewShape(catalog.Served{Content: c}), map[schema.GroupResource][]string{c.GroupResource(): {"get", "list", "watch"}})
}

// withViews passes requests for views to inside, and all others to others. A request for a
// view is authenticated in the cluster that the view belongs to.
func (s *Server) withViews(inside, others http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r, found, err := s.views.Parse(req.URL.Path)
		if !found || edge.HasDotSegment(req.URL.Path) { // edge.WithCluster refuses such paths
			others.ServeHTTP(w, req)
			return
		}
		if err != nil {
			edge.Refuse(w, req, err)
			return
		}
		at := edge.InCluster(req, r.Home, r.Path)
		inside.ServeHTTP(w, at.WithContext(view.With(at.Context(), r)))
	})
}

// viewedClusters serves the discovery of requests to all clusters of a view.
func (s *Server) viewedClusters() http.Handler {
	clusters := tree.LogicalClusters().GroupResource()
	status := schema.GroupResource{Group: clusters.Group, Resource: clusters.Resource + "/status"}
	page := sync.OnceValues(func() (http.Handler, error) {
		served, _ := s.given.Of(cluster.Root).Find(clusters)
		return s.discovery.Viewed(context.Background(), catalog.NewShape(served), discovery.Verbs{
			clusters: {"get", "list", "watch"},
			status:   {"get", "patch", "update"},
		})
	})
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h, err := page()
		if err != nil {
			edge.Refuse(w, req, apierrors.NewInternalError(err))
			return
		}
		h.ServeHTTP(w, req)
	})
}

// permissions returns the rules that a WorkspaceType grants to its initializer and to its
// terminator.
func (s *Server) permissions(ctx context.Context, c cluster.Name, name string) (initializer, terminator []rbacv1.PolicyRule, err error) {
	var t struct {
		Spec struct {
			Initializer []rbacv1.PolicyRule `json:"initializerPermissions"`
			Terminator  []rbacv1.PolicyRule `json:"terminatorPermissions"`
		} `json:"spec"`
	}
	types := keys.CustomResource(schema.GroupResource{Group: tenancyapi.GroupVersion.Group, Resource: "workspacetypes"}, s.workspaces.Resource.Identity)
	_, err = s.store.ReadInto(ctx, keys.Key{Resource: types, Cluster: c, Name: name}, &t)
	return t.Spec.Initializer, t.Spec.Terminator, err
}
