package serve

import (
	"maps"
	"slices"
	"strings"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	builder2 "k8s.io/kube-openapi/pkg/builder"
	builder3 "k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	handler2 "k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// routes returns the routes of a group and version for some contents, with which upstream's builders
// make an OpenAPI document of nothing else.
func (r *registries) routes(gv schema.GroupVersion, contents []*Content) []common.RouteContainer {
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
	of []*Content
}

// Routes implements [common.RouteContainer].
func (s someRoutes) Routes() []common.Route {
	return slices.DeleteFunc(s.RouteContainer.Routes(), func(r common.Route) bool {
		path := strings.TrimPrefix(r.Path(), s.RootPath())
		for _, part := range []string{"/watch", "/namespaces/{namespace}"} {
			path = strings.TrimPrefix(path, part)
		}
		resource, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		return !slices.ContainsFunc(s.of, func(c *Content) bool { return c.GroupResource().Resource == resource })
	})
}

// addTo adds the OpenAPI of offered contents in a group and version to a document, which may be
// empty.
func (o *Offers) addTo(doc *spec3.OpenAPI, gv schema.GroupVersion, contents []*Content, config *common.OpenAPIV3Config) error {
	r, err := o.built()
	if err != nil {
		return err
	}
	fresh, err := builder3.BuildOpenAPISpecFromRoutes(r.routes(gv, contents), new(*config)) // which the builder completes
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

// trimOf is [Verbs.trim] for the paths of one resource.
func (v Verbs) trimOf(gr schema.GroupResource, paths *spec3.Paths) {
	own := &spec3.Paths{Paths: map[string]*spec3.Path{}}
	for path, item := range paths.Paths {
		before, _, _ := strings.Cut(path, "/{name}")
		if before[strings.LastIndexByte(before, '/')+1:] == gr.Resource {
			own.Paths[path] = item
			delete(paths.Paths, path)
		}
	}
	v.trim(gr.Group, own)
	maps.Copy(paths.Paths, own.Paths)
}

// addToV2 adds the OpenAPI version 2 of offered contents to a document.
func (o *Offers) addToV2(doc *spec.Swagger, gv schema.GroupVersion, contents []*Content, config *common.Config) error {
	r, err := o.built()
	if err != nil {
		return err
	}
	fresh, err := builder2.BuildOpenAPISpecFromRoutes(r.routes(gv, contents), new(*config)) // which the builder completes
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
