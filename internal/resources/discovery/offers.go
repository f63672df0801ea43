package discovery

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/emicklei/go-restful/v3"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	builder2 "k8s.io/kube-openapi/pkg/builder"
	builder3 "k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	handler2 "k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/unforked/kcp/internal/network/inprocess"
	"github.com/unforked/kcp/internal/resources/catalog"
)

// offered splits contents into those of custom resources, and those of each offers.
func offered(contents []*catalog.Content) (custom []*catalog.Content, native map[*catalog.Offers][]*catalog.Content) {
	native = map[*catalog.Offers][]*catalog.Content{}
	for _, c := range contents {
		if o := c.Offers(); o != nil {
			native[o] = append(native[o], c)
		} else {
			custom = append(custom, c)
		}
	}
	return custom, native
}

// offeredGroups returns the discovery of the registries of offers.
func (d *Discovery) offeredGroups(ctx context.Context, o *catalog.Offers) (map[schema.GroupVersion]resources, error) {
	return d.offered.Get(ctx, o, func() (map[schema.GroupVersion]resources, error) {
		r, err := o.Registries()
		if err != nil {
			return nil, err
		}
		groups := map[schema.GroupVersion]resources{}
		for root, manager := range map[string]http.Handler{"api": r.AggregatedLegacyDiscoveryGroupManager, "apis": r.AggregatedDiscoveryGroupManager} {
			var all apidiscoveryv2.APIGroupDiscoveryList
			if err := inprocess.Fetch(manager, "/"+root, aggregatedJSON, &all); err != nil {
				return nil, err
			}
			for _, g := range all.Items {
				for _, v := range g.Versions {
					gv := schema.GroupVersion{Group: g.Name, Version: v.Version}
					var list metav1.APIResourceList
					if err := inprocess.Fetch(r.Handler.Director, "/"+at(gv), "application/json", &list); err != nil {
						return nil, err
					}
					groups[gv] = resources{list.APIResources, v.Resources}
				}
			}
		}
		return groups, nil
	})
}

// describeOffered describes an offered content as it is served in a group and version.
func (d *Discovery) describeOffered(ctx context.Context, gv schema.GroupVersion, c *catalog.Content) (resources, error) {
	groups, err := d.offeredGroups(ctx, c.Offers())
	if err != nil {
		return resources{}, err
	}
	var out resources
	own := c.GroupResource().Resource
	for _, one := range groups[gv].listed {
		if name, _, _ := strings.Cut(one.Name, "/"); name == own {
			out.listed = append(out.listed, one)
		}
	}
	for _, one := range groups[gv].aggregated {
		if one.Resource == own {
			one.Subresources = slices.Clone(one.Subresources)
			out.aggregated = append(out.aggregated, one)
		}
	}
	if ending := verbs(c.Definition); !slices.Contains(ending, "create") {
		out = Verbs{c.GroupResource(): ending}.restrict(gv.Group, out)
	}
	return out, nil
}

// routesOf returns the routes of a group and version for some contents, with which upstream's builders
// make an OpenAPI document of nothing else.
func routesOf(r *genericapiserver.GenericAPIServer, gv schema.GroupVersion, contents []*catalog.Content) []common.RouteContainer {
	var of []*restful.WebService
	for _, s := range r.Handler.GoRestfulContainer.RegisteredWebServices() {
		if s.RootPath() == "/"+at(gv) {
			of = append(of, s)
		}
	}
	var all []common.RouteContainer
	for _, one := range restfuladapter.AdaptWebServices(of) {
		all = append(all, someRoutes{one, contents})
	}
	return all
}

// someRoutes are the routes of a web service for some resources.
type someRoutes struct {
	common.RouteContainer
	of []*catalog.Content
}

// Routes implements [common.RouteContainer].
func (s someRoutes) Routes() []common.Route {
	return slices.DeleteFunc(s.RouteContainer.Routes(), func(r common.Route) bool {
		path := strings.TrimPrefix(r.Path(), s.RootPath())
		for _, part := range []string{"/watch", "/namespaces/{namespace}"} {
			path = strings.TrimPrefix(path, part)
		}
		resource, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		return !slices.ContainsFunc(s.of, func(c *catalog.Content) bool { return c.GroupResource().Resource == resource })
	})
}

// addOffered adds the OpenAPI of offered contents in a group and version to a document, which may be
// empty.
func addOffered(doc *spec3.OpenAPI, o *catalog.Offers, gv schema.GroupVersion, contents []*catalog.Content, config *common.OpenAPIV3Config) error {
	r, err := o.Registries()
	if err != nil {
		return err
	}
	fresh, err := builder3.BuildOpenAPISpecFromRoutes(routesOf(r, gv, contents), new(*config)) // which the builder completes
	if err != nil {
		return err
	}
	for _, c := range contents {
		if can := verbs(c.Definition); !slices.Contains(can, "create") {
			Verbs{c.GroupResource(): can}.trimOf(c.GroupResource(), fresh.Paths)
		}
	}
	if doc.Components == nil {
		*doc = *fresh
		return nil
	}
	for name, s := range fresh.Components.Schemas { // types that both have are the same
		if doc.Components.Schemas[name] == nil {
			doc.Components.Schemas[name] = s
		}
	}
	for path, p := range fresh.Paths.Paths {
		if doc.Paths.Paths[path] == nil {
			doc.Paths.Paths[path] = p
		}
	}
	return nil
}

// addOfferedV2 adds the OpenAPI version 2 of offered contents to a document.
func addOfferedV2(doc *spec.Swagger, o *catalog.Offers, gv schema.GroupVersion, contents []*catalog.Content, config *common.Config) error {
	r, err := o.Registries()
	if err != nil {
		return err
	}
	fresh, err := builder2.BuildOpenAPISpecFromRoutes(routesOf(r, gv, contents), new(*config)) // which the builder completes
	if err != nil {
		return err
	}
	for name, s := range handler2.PruneDefaults(fresh.Definitions) {
		if _, has := doc.Definitions[name]; !has {
			doc.Definitions[name] = s
		}
	}
	for path, p := range fresh.Paths.Paths {
		if _, has := doc.Paths.Paths[path]; !has {
			doc.Paths.Paths[path] = p
		}
	}
	return nil
}
