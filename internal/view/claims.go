package view

import (
	"context"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/discovery"
	"github.com/unforked/kcp/internal/sharing/bind"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/membership"
	"github.com/unforked/kcp/internal/storage/registry"
)

// claimedEverywhere plans a list or watch of a claimed resource in all clusters that accept the
// claim.
func (v *Exports) claimedEverywhere(req *http.Request, of *viewing, gr schema.GroupResource, c bind.Claimed) (*Plan, error) {
	if err := onlyReads(req, of.info, gr); err != nil {
		return nil, err
	}
	attributes, err := filters.GetAuthorizerAttributes(req.Context())
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	p := &Plan{User: of.user, Scope: v.scope(c.ViewList(of.name, of.info.Verb), true)}
	if c.Identity == "" {
		p.Context = of.labelled(c, v.while(of, func(context.Context) bool { return v.claims(of, gr, c) }))
		return p, nil
	}
	name, owner, err := v.owner(req.Context(), attributes, c)
	if err != nil {
		return nil, err
	}
	shape, _, err := v.config.APIs().Exports.Shape(req.Context(), name, owner)
	if err != nil {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("the claimed resource cannot be served: %v", err))
	}
	served, ok := shape.Find(gr)
	if !ok {
		return nil, notFound("no export has the claimed resource " + c.String())
	}
	p.Context = of.labelled(c, v.viewed(of, name, gr, served, func() bool { return v.claims(of, gr, c) }))
	return p, nil
}

// claimedInCluster plans a request for a claimed resource in one cluster that accepts the claim.
func (v *Exports) claimedInCluster(req *http.Request, r *Request, of *viewing, gr schema.GroupResource, c bind.Claimed) (*Plan, error) {
	attributes, err := filters.GetAuthorizerAttributes(req.Context())
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	apis := v.config.APIs()
	claim, ok := apis.Bindings.Granted(r.Cluster, of.via(), c, of.info.Verb)
	if !ok {
		return nil, &Refusal{attributes, r.outside("permission claim not accepted")}
	}
	grant := of.grant(r.Cluster, gr, claim.Verbs)
	if !grant.Allows(attributes) {
		return nil, &Refusal{attributes, "a permission claim covers a resource, its status and its scale, and no other subresources"}
	}
	if c.Identity != "" {
		name, owner, err := v.owner(req.Context(), attributes, c)
		if err != nil {
			return nil, err
		}
		if claim.Selector != "" && !v.stored(req.Context(), name, owner, gr) {
			return nil, &Refusal{attributes, "the accepted permission claim has a selector, and the objects of " + gr.String() + " are not stored in the workspace: accept the claim for all objects"}
		}
	}
	p := v.granted(r, of, grant, func(context.Context) bool {
		now, ok := apis.Bindings.Granted(r.Cluster, of.via(), c, of.info.Verb)
		return ok && now.Selector == claim.Selector && v.claims(of, gr, c)
	})
	if c.Identity != "" {
		p.Context = identified(p.Context, c.Identity)
	}
	p.Context = of.labelled(c, p.Context)
	if claim.Selector != "" {
		enter := p.Context
		p.Context = func(ctx context.Context) (context.Context, func()) {
			return enter(registry.WithPart(ctx, c.GroupResource, membership.NewPart(claim.Selector)))
		}
	}
	return p, nil
}

// stored reports whether the objects of an export's resource are known to be in the clusters that
// bind it. Only there can a selector be applied.
func (v *Exports) stored(ctx context.Context, name exports.Name, e *exports.Export, gr schema.GroupResource) bool {
	shape, _, err := v.config.APIs().Exports.Shape(ctx, name, e)
	if err != nil {
		return false
	}
	served, ok := shape.Find(gr)
	return ok && served.Content.Storage() == catalog.Stored
}

// labelled adds the label of a claim to the objects of a request, which is not stored with them.
func (of *viewing) labelled(c bind.Claimed, e entry) entry {
	return of.withLabel(c.GroupResource, apisv1alpha2.ClaimLabelValue(c.Group, c.Resource, c.Identity), e)
}

// ownBindings adds the label of the bindings of the export, which it reads without a claim.
func (of *viewing) ownBindings(e entry) entry {
	return of.withLabel(apiBindings, apisv1alpha2.OwnBindingLabelValue, e)
}

func (of *viewing) withLabel(gr schema.GroupResource, value string, e entry) entry {
	key := apisv1alpha2.ClaimedLabelPrefix + apisv1alpha2.ExportLabelValue(string(of.name.Cluster), of.name.Name)
	return withValue(e, func(ctx context.Context) context.Context { return registry.WithLabel(ctx, gr, key, value) })
}

// claims reports whether an export is the one of a request, and claims a resource.
func (v *Exports) claims(of *viewing, gr schema.GroupResource, c bind.Claimed) bool {
	now, ok := v.still(of)
	if !ok {
		return false
	}
	claimed, asks := bind.Asks(now, gr)
	return asks && claimed == c
}

// owner returns the export that a claimed resource comes from. It refuses a request that the
// cluster of that export does not let its consumers make.
func (v *Exports) owner(ctx context.Context, a authorizer.Attributes, c bind.Claimed) (exports.Name, *exports.Export, error) {
	name, e := v.config.APIs().Owner(c)
	if e == nil {
		return name, nil, notFound("no export has the claimed resource " + c.String())
	}
	if !e.Limited {
		return name, e, nil
	}
	switch ok, err := v.config.Limit(ctx, name.Cluster, a); {
	case err != nil:
		return name, nil, apierrors.NewInternalError(err)
	case !ok:
		return name, nil, &Refusal{a, "access denied by the maximal permission policy of the export of " + c.GroupResource.String()}
	}
	return name, e, nil
}

// describe returns the discovery of a view.
func (v *Exports) describe(ctx context.Context, of *viewing) (http.Handler, error) {
	shape, claimed := of.shape.All(), map[schema.GroupResource][]string{}
	for _, c := range of.export.Claims {
		asked, _ := bind.Asks(of.export, schema.GroupResource{Group: c.Group, Resource: c.Resource})
		if _, own := of.shape.Find(asked.GroupResource); own {
			continue
		}
		if asked.Identity == "" {
			addVerbs(claimed, asked.GroupResource, c.Verbs)
			continue
		}
		name, e := v.config.APIs().Owner(asked)
		if e == nil {
			continue // no export has the resource now
		}
		others, _, err := v.config.APIs().Exports.Shape(ctx, name, e)
		if err != nil {
			continue //nolint:nilerr // the resource cannot be served
		}
		if s, ok := others.Find(asked.GroupResource); ok {
			shape = append(shape[:len(shape):len(shape)], s)
			addVerbs(claimed, asked.GroupResource, c.Verbs)
		}
	}
	return v.config.Discovery(ctx, catalog.NewShape(shape...), claimed)
}

// addVerbs adds the verbs of a claimed resource and its subresources.
func addVerbs(claimed map[schema.GroupResource][]string, gr schema.GroupResource, verbs []string) {
	for _, of := range discovery.WithSubresources(gr) {
		claimed[of] = verbs
	}
}
