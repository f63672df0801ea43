package view

import (
	"context"
	"errors"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"

	cacheapi "github.com/unforked/kcp/apis/cache/v1alpha1"
	"github.com/unforked/kcp/internal/auth/authz"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/serve"
	"github.com/unforked/kcp/internal/sharing/bind"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/sharing/virtual"
)

// Replication are the views of ClusterCachedResources. The view of an endpoint slice has the
// objects that its ClusterCachedResource selects, for reading, in each cluster that binds the
// export of the slice. RBAC of the export's cluster guards it, as apiexports/content. The path names the
// slice, so the slice is read before the request is authorized, and after the change feed has caught up.
type Replication struct {
	exports   *Exports
	storage   func() *virtual.Storage
	discovery func(context.Context, *catalog.Content) (http.Handler, error)
}

// NewReplication returns the views. They use the guard, the exports and the bindings of e. storage
// returns the virtual storage, which is made after the views. discovery describes a content of which
// objects can only be read.
func NewReplication(e *Exports, storage func() *virtual.Storage, discovery func(context.Context, *catalog.Content) (http.Handler, error)) *Replication {
	return &Replication{e, storage, discovery}
}

// Name implements [View].
func (v *Replication) Name() string { return "replication" }

// Parse implements [View].
func (v *Replication) Parse(rest string) (*Request, error) {
	return parseOwned(v.Name(), "endpoint slice", rest)
}

// Plan implements [View].
func (v *Replication) Plan(req *http.Request, r *Request) (*Plan, error) {
	ctx, apis, storage := req.Context(), v.exports.config.APIs(), v.storage()
	u, info, err := requestOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := v.exports.config.CatchUp(ctx); err != nil {
		return nil, err
	}
	slice, exists := storage.Slices.Get(r.Home, "", r.ID)
	export := exports.Name{Cluster: r.Home}
	if exists {
		export.Name = slice.Name
	}
	if decision, _, err := v.exports.config.Guard.Authorize(ctx, contentOf(u, info.Verb, export.Name)); decision != authorizer.DecisionAllow {
		return nil, errors.Join(v.refusal(u, info.Verb, r), err)
	}
	if !exists {
		return nil, apierrors.NewNotFound(storage.SliceResource.GroupResource(), r.ID)
	}
	origin, err := storage.CachedThrough(r.Home, slice)
	if err != nil {
		return nil, err
	}
	member := func(context.Context) bool {
		e, ok := apis.Exports.Get(export.Cluster, "", export.Name)
		return ok && (r.Cluster == cluster.All || apis.Bindings.Binds(r.Cluster, bind.Via{Export: export, Identity: e.Identity}))
	}
	if !member(ctx) {
		attributes, err := filters.GetAuthorizerAttributes(ctx)
		return nil, errors.Join(&Refusal{attributes, r.outside(authz.Denied)}, err)
	}
	p := &Plan{User: u, Reason: "the user may " + info.Verb + " the content of APIExport " + export.Name}
	switch {
	case !info.IsResourceRequest && describes(info.Path):
		p.Page, err = v.discovery(ctx, origin.Found.Content)
		return p, err
	case !info.IsResourceRequest:
		return nil, notFound("a view has what is in a logical cluster, and nothing of the server itself")
	}
	return p, v.read(req, r, &cachedReading{p, origin, info, member})
}

// refusal returns the error for users who may not use the content of the export of an endpoint slice. It
// is the same for all slices and for those that do not exist: it names neither the export nor a reason.
func (v *Replication) refusal(u user.Info, verb string, r *Request) error {
	of := v.storage().SliceResource.GroupResource()
	return &Refusal{authorizer.AttributesRecord{
		User: u, Verb: verb, APIGroup: of.Group, APIVersion: cacheapi.GroupVersion.Version,
		Resource: of.Resource, Subresource: "content", Name: r.ID, ResourceRequest: true,
	}, authz.Denied}
}

// A cachedReading is a request for the objects of a ClusterCachedResource.
type cachedReading struct {
	plan   *Plan
	origin *serve.Origin
	info   *request.RequestInfo
	member func(context.Context) bool
}

// read completes the plan of a request for objects.
func (v *Replication) read(req *http.Request, r *Request, of *cachedReading) error {
	gr := schema.GroupResource{Group: of.info.APIGroup, Resource: of.info.Resource}
	switch {
	case gr != of.origin.Found.Content.GroupResource():
		return notFound("the ClusterCachedResource is of another resource than " + gr.String())
	case of.info.Subresource != "" || !slices.Contains([]string{"get", "list", "watch"}, of.info.Verb):
		err := apierrors.NewMethodNotSupported(gr, of.info.Verb)
		err.ErrStatus.Message = "the objects of a ClusterCachedResource can only be read through this view; get, list or watch them"
		return err
	case of.info.Verb != "watch":
		of.plan.Context = func(ctx context.Context) (context.Context, func()) { return of.origin.Enter(ctx, of.info.Verb) }
		return nil
	}
	if err := of.origin.Covers(req.Context(), req.URL.Query().Get("resourceVersion")); err != nil {
		return err
	}
	of.plan.Context = func(ctx context.Context) (context.Context, func()) {
		ctx, left := v.exports.watches.until(ctx, of.member, r.Cluster)
		ctx, ended := of.origin.Until(ctx)
		ctx, done := of.origin.Enter(ctx, of.info.Verb)
		return serve.WithViewed(ctx, catalog.Found{Served: of.origin.Found.Served}), func() { done(); ended(); left() }
	}
	return nil
}
