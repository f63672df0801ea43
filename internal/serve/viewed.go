package serve

import (
	"context"
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

	"github.com/unforked/kcp/internal/cluster"
)

// Verbs are the verbs of a view. The keys are "resource" or "resource/subresource".
type Verbs map[string]metav1.Verbs

// Viewed returns a handler for the discovery and OpenAPI of a view that serves the resources
// of a shape, with the verbs in can.
func (d *Discovery) Viewed(s *Shape, can Verbs) (http.Handler, error) {
	pages := map[string]http.Handler{}
	core, others := map[schema.GroupVersion]resources{}, map[schema.GroupVersion]resources{}
	byVersion := contentsByVersion(s, nil)
	for gv, contents := range byVersion {
		all, err := resourcesOf(gv, contents)
		if err != nil {
			return nil, err
		}
		all = can.restrict(all)
		if gv.Group == "" {
			core[gv] = all
		} else {
			others[gv] = all
		}
		lister := discovery.APIResourceListerFunc(func() []metav1.APIResource { return all.listed })
		pages[at(gv)] = getOnly(discovery.NewAPIVersionHandler(d.base.Serializer, gv, lister))
	}
	var err error
	if pages["api"], err = d.newRoot(mergeGroups(nil, core), legacyVersions(core)); err != nil {
		return nil, err
	}
	groups := mergeGroups(nil, others)
	listed := d.groupPages(pages, groups, others)
	older := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { d.writeGroups(w, r, listed) })
	if pages["apis"], err = d.newRoot(groups, older); err != nil {
		return nil, err
	}
	if err := viewedOpenAPI(pages, byVersion, can); err != nil {
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

// ViewedOnce is [Discovery.Viewed] with all verbs, but those in less for some resources. Views
// of equal resources share the result.
func (d *Discovery) ViewedOnce(ctx context.Context, s *Shape, less Verbs) (http.Handler, error) {
	return d.views.get(ctx, s.Key, func() (http.Handler, error) {
		can := Verbs{}
		for _, served := range s.All() {
			name := served.Content.GroupResource().Resource
			if can[name] = less[name]; can[name] == nil {
				can[name], can[name+"/status"], can[name+"/scale"] = verbs(served.Content.Definition), subresourceVerbs(), subresourceVerbs()
			}
		}
		return d.Viewed(s, can)
	})
}

// legacyVersions serves the versions of the core group.
func legacyVersions(core map[schema.GroupVersion]resources) http.Handler {
	list := metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{}}
	for gv := range core {
		list.Versions = append(list.Versions, gv.Version)
	}
	text, _ := json.Marshal(list) // strings always encode
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

// viewedOpenAPI adds the OpenAPI v3 handlers of contents to pages.
func viewedOpenAPI(pages map[string]http.Handler, byVersion map[schema.GroupVersion][]*Content, can Verbs) error {
	service := handler3.NewOpenAPIService()
	for gv, contents := range byVersion {
		var docs []*spec3.OpenAPI
		for _, c := range contents {
			whole, err := c.Whole()
			if err != nil {
				return err
			}
			doc, err := builder.BuildOpenAPIV3(whole, gv.Version, openAPIOptions(false))
			if err != nil {
				return err
			}
			can.trim(doc.Paths)
			docs = append(docs, doc)
		}
		merged, err := builder.MergeSpecsV3(docs...)
		if err != nil {
			return err
		}
		if gv.Group == "" {
			merged.Paths.Paths = withoutEmptyGroup(merged.Paths.Paths)
		}
		service.UpdateGroupVersion(at(gv), merged)
	}
	hashes, err := hashesOf(service)
	if err != nil {
		return err
	}
	if pages["openapi/v3"], err = newOpenAPIV3Root(hashes); err != nil {
		return err
	}
	for gv := range byVersion {
		pages["openapi/v3/"+at(gv)] = &document{service: service, hash: hashes["/"+at(gv)]}
	}
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

type viewedKey struct{}

// WithViewed returns a context for a request through a view, in which the view decides how a
// resource is served: f holds for requests to all clusters, which have no definitions of their
// own.
func WithViewed(ctx context.Context, f Found) context.Context {
	return context.WithValue(ctx, viewedKey{}, f)
}

// viewedFrom returns the resource gr as a view serves it to all clusters.
func viewedFrom(ctx context.Context, gr schema.GroupResource) (Found, bool) {
	f, ok := ctx.Value(viewedKey{}).(Found)
	if c, _ := cluster.From(ctx); !ok || c != cluster.All || f.Content.GroupResource() != gr {
		return Found{}, false
	}
	return f, true
}
