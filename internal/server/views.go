package server

import (
	"context"
	"net/http"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/serve"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/tenancy"
	"github.com/unforked/kcp/internal/view"
)

// newViews returns the views, which work once there is a tree of workspaces.
func (s *Server) newViews() *view.Views {
	return view.New(view.Config{
		Authorizer: decisive(s.authorizers()), Serializer: legacyscheme.Codecs, Discovery: s.viewedClusters(), Permissions: s.permissions,
		LogicalCluster: func(ctx context.Context, c cluster.Name) (*core.LogicalCluster, error) {
			return s.workspaces.LogicalCluster(ctx, c)
		},
	})
}

// withViews takes requests for views to the cluster that the view belongs to, where
// they are authenticated, and all others to those who serve clusters.
func (s *Server) withViews(inside, others http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r, found, err := s.views.Parse(req.URL.Path)
		if !found || climbs(req.URL.Path) { // which is refused there
			others.ServeHTTP(w, req)
			return
		}
		if err != nil {
			refuse(w, req, err)
			return
		}
		at := inCluster(req, r.Home, r.Path)
		inside.ServeHTTP(w, at.WithContext(view.With(at.Context(), r)))
	})
}

// viewedClusters describes what views have of all their clusters.
func (s *Server) viewedClusters() http.Handler {
	page := sync.OnceValues(func() (http.Handler, error) {
		shape := s.given.of(cluster.Root)
		served, _ := shape.Find(schema.GroupResource{Group: core.GroupVersion.Group, Resource: "logicalclusters"})
		return s.discovery.Viewed(served.Content, core.GroupVersion.Version, serve.Verbs{
			"logicalclusters":        metav1.Verbs{"get", "list", "watch"},
			"logicalclusters/status": metav1.Verbs{"get", "patch", "update"},
		})
	})
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h, err := page()
		if err != nil {
			refuse(w, req, apierrors.NewInternalError(err))
			return
		}
		h.ServeHTTP(w, req)
	})
}

// permissions returns what a WorkspaceType grants to those who prepare, and those who
// clear up, workspaces of its type.
func (s *Server) permissions(ctx context.Context, c cluster.Name, name string) (initializer, terminator []rbacv1.PolicyRule, err error) {
	var t struct {
		Spec struct {
			Initializer []rbacv1.PolicyRule `json:"initializerPermissions"`
			Terminator  []rbacv1.PolicyRule `json:"terminatorPermissions"`
		} `json:"spec"`
	}
	types := store.CustomResource(schema.GroupResource{Group: tenancyapi.GroupVersion.Group, Resource: "workspacetypes"}, s.workspaces.Resource.Identity)
	_, err = s.store.ReadInto(ctx, store.Key{Resource: types, Cluster: c, Name: name}, &t)
	return t.Spec.Initializer, t.Spec.Terminator, err
}

// viewed has views learn of changes of clusters, and what is stored of those complete.
func (s *Server) viewed() {
	s.store.OnWrite(tenancy.LogicalClusters(), tenancy.DeriveCluster)
	s.store.OnWrite(s.workspaces.Resource, tenancy.DeriveWorkspace)
	s.tree.OnCluster(s.views.Changed)
}
