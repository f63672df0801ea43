package view

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/auth/authz"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/serve"
	"github.com/unforked/kcp/internal/sharing/bind"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/registry"
	"github.com/unforked/kcp/internal/storage/values"
)

// ExportsConfig holds the dependencies of [Exports]. All fields are required.
type ExportsConfig struct {
	// Guard authorizes the use of a view.
	Guard authorizer.Authorizer
	// CatchUp waits until the exports and bindings are those that are stored now. A claim that
	// was rejected must not be granted any more.
	CatchUp func(context.Context) error
	// APIs returns the exports and bindings.
	APIs func() *bind.APIs
	// Discovery describes the resources of a view: those of a shape, and claimed ones with the
	// verbs that are claimed.
	Discovery func(ctx context.Context, of *catalog.Shape, claimed map[schema.GroupResource][]string) (http.Handler, error)
	// Epoch returns the epoch of resource versions.
	Epoch func() values.Epoch
	// Limit reports whether RBAC in the cluster of an export lets a user make a request for its
	// resources.
	Limit func(ctx context.Context, export cluster.Name, a authorizer.Attributes) (bool, error)
}

// Exports are the views of providers. The view of an export has the objects of its resources
// in all clusters that bind it. RBAC of the export's cluster guards it, as apiexports/content.
type Exports struct {
	config  ExportsConfig
	watches openWatches
}

// NewExports returns the views.
func NewExports(c ExportsConfig) *Exports {
	return &Exports{config: c, watches: newOpenWatches()}
}

// Follow makes the views follow the exports and bindings. They call also with
// the cluster of every binding that changes. Call it before the change feed starts.
func (v *Exports) Follow(a *bind.APIs, also func(cluster.Name)) {
	a.Bindings.OnChange(func(c cluster.Name) {
		v.watches.changed(c)
		also(c)
	})
	a.Exports.Subscribe(func(k keys.Key) { v.watches.changed(k.Cluster) })
	a.Exports.Rollouts.Subscribe(func(k keys.Key) { v.watches.changed(k.Cluster) })
	a.Exports.OnSchema(v.watches.changed)
	a.Exports.OnConversion(v.watches.changed)
}

// Name implements [View].
func (v *Exports) Name() string { return "apiexport" }

// Parse implements [View].
func (v *Exports) Parse(rest string) (*Request, error) {
	return parseOwned(v.Name(), "export", rest)
}

// Plan implements [View].
func (v *Exports) Plan(req *http.Request, r *Request) (*Plan, error) {
	if r.together() {
		return v.together(req, r)
	}
	ctx := req.Context()
	u, info, err := requestOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := authorize(ctx, v.config.Guard, contentOf(u, info.Verb, r.ID)); err != nil {
		return nil, err
	}
	if err := v.config.CatchUp(ctx); err != nil {
		return nil, err
	}
	name := exports.Name{Cluster: r.Home, Name: r.ID}
	export, ok := v.config.APIs().Exports.Get(name.Cluster, "", name.Name)
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: apisv1alpha2.GroupVersion.Group, Resource: "apiexports"}, r.ID)
	}
	if export.Identity == "" { // its resources would be those of no export
		return nil, apierrors.NewServiceUnavailable("the APIExport has no identity; see its condition IdentityValid")
	}
	shape, lacks, err := v.config.APIs().Exports.Shape(ctx, name, export)
	if err != nil {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("the export cannot be served: %v", err))
	}
	if why, ok := lacks[schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}]; ok && info.IsResourceRequest {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("%s.%s cannot be served: %s", info.Resource, info.APIGroup, why))
	}
	p, err := v.plan(req, r, &viewing{name, export, info, u, shape})
	if err == nil {
		p.Reason = "the user may " + info.Verb + " the content of APIExport " + r.ID
	}
	return p, err
}

// contentOf returns the attributes of a request for the content of an export.
func contentOf(u user.Info, verb, export string) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{
		User: u, Verb: verb, APIGroup: apisv1alpha2.GroupVersion.Group, APIVersion: apisv1alpha2.GroupVersion.Version,
		Resource: "apiexports", Subresource: "content", Name: export, ResourceRequest: true,
	}
}

// A viewing is a request for the view of an export by an authorized user.
type viewing struct {
	name   exports.Name
	export *exports.Export
	info   *request.RequestInfo
	user   user.Info
	shape  *catalog.Shape
}

// via returns the export of the view with its identity.
func (of *viewing) via() bind.Via { return bind.Via{Export: of.name, Identity: of.export.Identity} }

var apiBindings = schema.GroupResource{Group: apisv1alpha2.GroupVersion.Group, Resource: "apibindings"}

func (v *Exports) plan(req *http.Request, r *Request, of *viewing) (*Plan, error) {
	gr := schema.GroupResource{Group: of.info.APIGroup, Resource: of.info.Resource}
	served, exported := of.shape.Find(gr)
	claimed, asked := bind.Asks(of.export, gr)
	switch {
	case !of.info.IsResourceRequest && describes(of.info.Path):
		page, err := v.describe(req.Context(), of)
		return &Plan{User: of.user, Page: page}, err
	case !of.info.IsResourceRequest:
		return nil, notFound("a view has what is in a logical cluster, and nothing of the server itself")
	case !exported && !asked && gr != apiBindings:
		return nil, notFound(fmt.Sprintf("the export neither lets consumers store the resource %s nor claims it", gr))
	case !exported && asked && r.Cluster == cluster.All:
		return v.claimedEverywhere(req, of, gr, claimed)
	case !exported && asked:
		return v.claimedInCluster(req, r, of, gr, claimed)
	case r.Cluster == cluster.All:
		return v.everywhere(req, of, gr, catalog.Found{Served: served})
	}
	return v.inCluster(req, r, of, gr)
}

// everywhere plans a request for all clusters that bind the export.
func (v *Exports) everywhere(req *http.Request, of *viewing, gr schema.GroupResource, f catalog.Found) (*Plan, error) {
	if err := onlyReads(req, of.info, gr); err != nil {
		return nil, err
	}
	p := &Plan{User: of.user, Scope: v.scope(bind.ViewList{Export: of.name}, false)}
	if gr == apiBindings {
		var err error
		p.Query, err = ownBindings(req.URL.Query(), of.name)
		p.Context = of.ownBindings(v.while(of, func(context.Context) bool {
			_, same := v.still(of)
			return same
		}))
		return p, err
	}
	p.Context = v.viewed(of, of.name, gr, f.Served, func() bool { return true }) // serves compares the identity
	return p, nil
}

// still returns the export of a request as it is now, and whether it is still the same.
func (v *Exports) still(of *viewing) (*exports.Export, bool) {
	now, ok := v.config.APIs().Exports.Get(of.name.Cluster, "", of.name.Name)
	return now, ok && now.Identity == of.export.Identity
}

// while returns the entry of a request in cluster c and in clusters that are in the view. A watch ends
// when stays is false, see [openWatches.while].
func (v *Exports) while(of *viewing, stays func(context.Context) bool, c ...cluster.Name) entry {
	return v.watches.while(of.info, stays, append(c, of.name.Cluster)...)
}

// viewed returns the entry of a list or watch of a resource that an export has. A watch ends
// when the export serves the resource in another way, or the export of the view may not read it any
// more; the client then watches again.
func (v *Exports) viewed(of *viewing, export exports.Name, gr schema.GroupResource, as catalog.Served, may func() bool) entry {
	stays := func(ctx context.Context) bool { return may() && v.serves(ctx, export, gr, as) }
	return withValue(v.while(of, stays, export.Cluster), func(ctx context.Context) context.Context {
		return serve.WithViewed(ctx, catalog.Found{Served: as})
	})
}

// scope returns the scope of a list or watch.
func (v *Exports) scope(r bind.ViewList, sparse bool) func() (registry.Scope, func()) {
	return func() (registry.Scope, func()) {
		set, done := v.config.APIs().Bindings.Members.Use(r)
		return registry.Scope{Set: set, Sparse: sparse}, done
	}
}

// serves reports whether an export has a resource as it had when a watch began. If that cannot be
// found out, the watch continues.
func (v *Exports) serves(ctx context.Context, name exports.Name, gr schema.GroupResource, as catalog.Served) bool {
	export, ok := v.config.APIs().Exports.Get(name.Cluster, "", name.Name)
	if !ok {
		return false
	}
	shape, _, err := v.config.APIs().Exports.Shape(ctx, name, export)
	if err != nil {
		return true
	}
	now, ok := shape.Find(gr)
	return ok && now.Identity == as.Identity && now.Content.WatchHash == as.Content.WatchHash
}

// ownBindings adds the selector of the bindings of an export to a query.
func ownBindings(query url.Values, e exports.Name) (url.Values, error) {
	return selecting(query, labels.Set{apisv1alpha2.ExportLabel: apisv1alpha2.ExportLabelValue(string(e.Cluster), e.Name)})
}

// inCluster plans a request for one cluster that binds the export.
func (v *Exports) inCluster(req *http.Request, r *Request, of *viewing, gr schema.GroupResource) (*Plan, error) {
	attributes, err := filters.GetAuthorizerAttributes(req.Context())
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	member := func(context.Context) bool {
		_, same := v.still(of)
		return same && v.config.APIs().Bindings.Binds(r.Cluster, of.via())
	}
	if !member(req.Context()) {
		return nil, &Refusal{attributes, r.outside(authz.Denied)}
	}
	verbs := []string{rbacv1.VerbAll}
	var query url.Values
	if gr == apiBindings {
		verbs = []string{"get", "list", "watch"}
		b := v.config.APIs().Bindings.Get(r.Cluster, of.info.Name)
		if of.info.Verb == "get" && (b == nil || b.Export != of.name) {
			return nil, apierrors.NewNotFound(gr, of.info.Name)
		}
		if of.info.Verb != "get" {
			query, err = ownBindings(req.URL.Query(), of.name)
		}
		if err != nil {
			return nil, err
		}
	}
	grant := of.grant(r.Cluster, gr, verbs)
	if !grant.Allows(attributes) {
		return nil, &Refusal{attributes, "the view of an export only reads " + gr.String()}
	}
	p := v.granted(r, of, grant, member)
	if p.Query = query; gr == apiBindings {
		p.Context = of.ownBindings(p.Context)
	} else {
		p.Context = identified(p.Context, of.export.Identity)
	}
	return p, nil
}

// identified limits a request in a cluster to the resource of an identity. The cluster may have a
// resource of the same name from elsewhere.
func identified(e entry, identity string) entry {
	return withValue(e, func(ctx context.Context) context.Context { return serve.WithRequestedIdentity(ctx, identity) })
}

// grant returns the rights that a request has in a cluster.
func (of *viewing) grant(c cluster.Name, gr schema.GroupResource, verbs []string) *authz.Grant {
	return &authz.Grant{Cluster: c, Unlimited: true, Group: auth.ProviderGroupPrefix + string(of.name.Cluster) + ":" + of.name.Name, Rules: []rbacv1.PolicyRule{
		{Verbs: verbs, APIGroups: []string{gr.Group}, Resources: []string{gr.Resource, gr.Resource + "/status", gr.Resource + "/scale"}},
		authz.AccessRule(),
	}}
}

// granted plans a request in a cluster with a grant. A watch ends when member is false.
func (v *Exports) granted(r *Request, of *viewing, grant *authz.Grant, member func(context.Context) bool) *Plan {
	return &Plan{User: grant.Holder(of.user), Context: withGrant(v.while(of, member, r.Cluster), grant)}
}
