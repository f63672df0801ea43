package serve

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
)

// Verbs are the verbs of a view. The keys are "resource" or "resource/subresource".
type Verbs map[string]metav1.Verbs

// Viewed returns a handler for the discovery and OpenAPI of a view that serves one
// resource in one version, with the verbs in can.
func (d *Discovery) Viewed(c *Content, version string, can Verbs) (http.Handler, error) {
	gv := schema.GroupVersion{Group: c.GroupResource().Group, Version: version}
	all, err := resourcesOf(gv, []*Content{c})
	if err != nil {
		return nil, err
	}
	groups := mergeGroups(nil, map[schema.GroupVersion]resources{gv: can.restrict(all)})
	group := groupOf(groups[0])
	listed := can.restrict(all).listed
	older := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { d.writeGroups(w, r, []metav1.APIGroup{group}) })
	pages := map[string]http.Handler{
		"apis/" + gv.Group: getOnly(discovery.NewAPIGroupHandler(d.base.Serializer, group)),
		at(gv):             getOnly(discovery.NewAPIVersionHandler(d.base.Serializer, gv, discovery.APIResourceListerFunc(func() []metav1.APIResource { return listed }))),
	}
	if pages["api"], err = d.newRoot(nil, noLegacyVersions()); err != nil {
		return nil, err
	}
	if pages["apis"], err = d.newRoot(groups, older); err != nil {
		return nil, err
	}
	if err := d.viewedOpenAPI(pages, gv, c, can); err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.Trim(r.URL.Path, "/")
		page := pages[path]
		switch {
		case page != nil:
			page.ServeHTTP(w, r)
		case path == "version":
			d.base.Handler.Director.ServeHTTP(w, r)
		default: // other paths of the server do not belong to the view
			http.NotFound(w, r)
		}
	}), nil
}

// noLegacyVersions serves an empty list of versions of the core group.
func noLegacyVersions() http.Handler {
	text, _ := json.Marshal(metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{}}) // strings always encode
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(text) // an error means that the client has disconnected
	})
}

// restrict returns the resources that have verbs in v, with these verbs.
func (v Verbs) restrict(all resources) resources {
	var out resources
	for _, r := range all.listed {
		if r.Verbs = v[r.Name]; len(r.Verbs) > 0 {
			out.listed = append(out.listed, r)
		}
	}
	for _, r := range all.aggregated {
		r.Verbs = v[r.Resource]
		subresources := slices.Clone(r.Subresources)
		for i := range subresources {
			subresources[i].Verbs = v[r.Resource+"/"+subresources[i].Subresource]
		}
		r.Subresources = slices.DeleteFunc(subresources, func(s apidiscoveryv2.APISubresourceDiscovery) bool { return len(s.Verbs) == 0 })
		out.aggregated = append(out.aggregated, r)
	}
	return out
}

// viewedOpenAPI adds the OpenAPI v3 handlers to pages.
func (d *Discovery) viewedOpenAPI(pages map[string]http.Handler, gv schema.GroupVersion, c *Content, can Verbs) error {
	whole, err := c.Whole()
	if err != nil {
		return err
	}
	doc, err := builder.BuildOpenAPIV3(whole, gv.Version, openAPIOptions(false))
	if err != nil {
		return err
	}
	can.trim(doc.Paths)
	service := handler3.NewOpenAPIService()
	service.UpdateGroupVersion(at(gv), doc)
	hashes, err := hashesOf(service)
	if err != nil {
		return err
	}
	if pages["openapi/v3"], err = newOpenAPIV3Root(hashes); err != nil {
		return err
	}
	pages["openapi/v3/"+at(gv)] = &document{service: service, hash: hashes["/"+at(gv)]}
	return nil
}

// trim removes the operations whose verbs are not in v.
func (v Verbs) trim(paths *spec3.Paths) {
	for path, item := range paths.Paths {
		before, after, named := strings.Cut(path, "/{name}")
		resource := before[strings.LastIndexByte(before, '/')+1:] + after
		can := func(verbs ...string) bool {
			return slices.ContainsFunc(verbs, func(verb string) bool { return slices.Contains(v[resource], verb) })
		}
		if named && !can("get") || !named && !can("list") {
			item.Get = nil
		}
		if named || !can("create") {
			item.Post = nil
		}
		if !can("update") {
			item.Put = nil
		}
		if !can("patch") {
			item.Patch = nil
		}
		if named && !can("delete") || !named && !can("deletecollection") {
			item.Delete = nil
		}
		if item.Get == nil && item.Post == nil && item.Put == nil && item.Patch == nil && item.Delete == nil {
			delete(paths.Paths, path)
		}
	}
}
