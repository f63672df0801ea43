package serve

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/request/response"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/storage/membership"
	"github.com/unforked/kcp/internal/storage/registry"
)

// An Origin has the objects of a resource that are not stored in the cluster of a request.
type Origin struct {
	// Remote serves the request, if another server has the objects.
	Remote http.Handler
	// Cluster and Found are the cluster with the objects, and how it serves them. The objects
	// of Part can be read.
	Cluster cluster.Name
	Found   catalog.Found
	Part    membership.Part
	// Scope returns the scope of a watch of these objects.
	Scope func() (registry.Scope, func())
	// Covers refuses a watch from a resource version at which another origin may have had the
	// place of this one.
	Covers func(ctx context.Context, resourceVersion string) error
	// Until returns a context for a watch that ends when another origin takes the place of this
	// one. The caller must call the returned function when the watch has ended.
	Until func(ctx context.Context) (context.Context, func())
}

// virtual serves a request for a resource whose objects are not stored in the cluster of the
// request. The definition of that cluster describes them.
func (p *Pool) virtual(w http.ResponseWriter, req *http.Request, info *request.RequestInfo, f catalog.Found) {
	fail := func(err error) {
		gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
		responsewriters.ErrorNegotiated(err, apiextensions.Codecs, gv, w, req)
	}
	gr := f.Content.GroupResource()
	if f.Content.Storage() == catalog.Cached && (info.Subresource != "" || !readsOnly(info.Verb)) {
		fail(unchangeable(gr, info))
		return
	}
	c, err := cluster.One(req.Context())
	if err != nil {
		fail(apierrors.NewBadRequest(err.Error()))
		return
	}
	origin, err := p.config.Origin(req.Context(), c, gr, f)
	if err != nil {
		fail(err)
		return
	}
	if info.Verb == "watch" {
		if err := origin.Covers(req.Context(), req.URL.Query().Get("resourceVersion")); err != nil {
			fail(err)
			return
		}
		ctx, ended := p.config.Resolver.WatchContext(req.Context(), c, f)
		defer func() { response.WhenServed(ctx, ended) }()
		ctx, done := origin.Until(ctx)
		defer func() { response.WhenServed(ctx, done) }()
		req = req.WithContext(ctx)
	}
	if origin.Remote != nil {
		req.Body = http.MaxBytesReader(w, req.Body, p.config.MaxBody)
		fair.From(req.Context()).Pause() // the server outside may take long, or never answer
		origin.Remote.ServeHTTP(w, req)
		return
	}
	ctx, left := origin.Enter(req.Context(), info.Verb)
	defer func() { response.WhenServed(ctx, left) }()
	in := catalog.Served{Content: f.Content.AsStored(), Identity: origin.Found.Identity}
	p.serve(w, req.WithContext(registry.WithIdentity(ctx, in.Identity)), catalog.Found{Served: in})
}

// Enter returns the context in which a request reads the objects of the origin. The caller must
// call the returned function when the request has ended.
func (o *Origin) Enter(ctx context.Context, verb string) (context.Context, func()) {
	if verb == "watch" { // the objects that it covers may become others
		scope, done := o.Scope()
		return registry.WithScope(cluster.With(ctx, cluster.All), scope), done
	}
	ctx = cluster.With(ctx, o.Cluster)
	if o.Part.String() != "" {
		ctx = registry.WithPart(ctx, o.Found.Content.GroupResource(), o.Part)
	}
	return ctx, func() {}
}

func readsOnly(verb string) bool { return slices.Contains([]string{"get", "list", "watch"}, verb) }

// unchangeable returns the error for a request that does not just read cached objects.
func unchangeable(gr schema.GroupResource, info *request.RequestInfo) error {
	why := fmt.Sprintf("the objects of %s belong to the provider of the API, and can only be read here: %s is not supported", gr, info.Verb)
	if info.Subresource != "" {
		why = fmt.Sprintf("the objects of %s belong to the provider of the API, and have no subresource %s here", gr, info.Subresource)
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed, Message: why,
		Details: &metav1.StatusDetails{Group: gr.Group, Kind: gr.Resource},
	}}
}
