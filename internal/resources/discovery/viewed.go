package discovery

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/kube-openapi/pkg/handler3"

	"github.com/unforked/kcp/internal/resources/catalog"
)

// Viewed returns a handler for the discovery and OpenAPI of a view that serves the resources
// of a shape, and native resources, with the verbs in can.
func (d *Discovery) Viewed(ctx context.Context, s *catalog.Shape, can Verbs) (http.Handler, error) {
	pages := map[string]http.Handler{}
	core, others := map[schema.GroupVersion]resources{}, map[schema.GroupVersion]resources{}
	byVersion, err := d.contents(ctx, s)
	if err != nil {
		return nil, err
	}
	all, err := d.viewedNatives(ctx, can)
	if err != nil {
		return nil, err
	}
	documents := map[schema.GroupVersion]part{}
	for gv := range all {
		documents[gv] = part{gv: gv, shared: true}
	}
	for gv, contents := range byVersion {
		documents[gv] = part{gv: gv, contents: contents, shared: documents[gv].shared}
		customs, err := d.resourcesOf(ctx, gv, contents)
		if err != nil {
			return nil, err
		}
		all[gv] = all[gv].and(can.restrict(gv.Group, customs))
	}
	for gv, of := range all {
		if gv.Group == "" {
			core[gv] = of
		} else {
			others[gv] = of
		}
		lister := discovery.APIResourceListerFunc(func() []metav1.APIResource { return of.listed })
		pages[at(gv)] = getOnly(discovery.NewAPIVersionHandler(d.base.Serializer, gv, lister))
	}
	if pages["api"], err = d.newRoot(mergeGroups(nil, core), legacyVersions(core)); err != nil {
		return nil, err
	}
	groups := mergeGroups(nil, others)
	listed := d.groupPages(pages, groups, others)
	older := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { d.writeGroups(w, r, listed) })
	if pages["apis"], err = d.newRoot(groups, older); err != nil {
		return nil, err
	}
	if err := d.viewedOpenAPI(pages, documents, can); err != nil {
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

// ViewedOnce is [Discovery.Viewed] for a view of all resources of a shape with all verbs. A
// resource in only has just these verbs, "*" for all, and the subresources that are in only;
// native resources must be in it. Views of equal resources share the result.
func (d *Discovery) ViewedOnce(ctx context.Context, s *catalog.Shape, only map[schema.GroupResource][]string) (http.Handler, error) {
	sum := sha256.New()
	sum.Write(s.Key[:])
	for _, gr := range slices.SortedFunc(maps.Keys(only), func(a, b schema.GroupResource) int { return strings.Compare(a.String(), b.String()) }) {
		sum.Write(fmt.Appendf(nil, "%s %q\n", gr, only[gr]))
	}
	var key catalog.Hash
	sum.Sum(key[:0])
	ctx = context.WithoutCancel(ctx) // other requests may wait for the result after this client has gone
	return d.views.Get(ctx, key, func() (http.Handler, error) {
		can := Verbs{}
		for gr, some := range only {
			can[gr] = some
		}
		for _, served := range s.All() {
			if gr := served.Content.GroupResource(); only[gr] == nil {
				for _, of := range WithSubresources(gr) {
					can[of] = metav1.Verbs{rbacv1.VerbAll}
				}
			}
		}
		return d.Viewed(ctx, s, can)
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

// and returns the resources of both.
func (r resources) and(other resources) resources {
	return resources{slices.Concat(r.listed, other.listed), slices.Concat(r.aggregated, other.aggregated)}
}

// viewedNatives returns the native resources of a view.
func (d *Discovery) viewedNatives(ctx context.Context, can Verbs) (map[schema.GroupVersion]resources, error) {
	all := map[schema.GroupVersion]resources{}
	for _, root := range []string{"api", "apis"} {
		groups, err := d.nativeGroups(ctx, root)
		if err != nil {
			return nil, err
		}
		for _, g := range groups {
			for _, version := range g.Versions {
				gv := schema.GroupVersion{Group: g.Name, Version: version.Version}
				if some := can.restrict(g.Name, listed(version.Resources)); len(some.listed) > 0 {
					all[gv] = some
				}
			}
		}
	}
	return all, nil
}

// listed returns resources in both forms of discovery.
func listed(all []apidiscoveryv2.APIResourceDiscovery) resources {
	out := resources{aggregated: all}
	for _, r := range all {
		namespaced := r.Scope == apidiscoveryv2.ScopeNamespace
		one := metav1.APIResource{
			Name: r.Resource, SingularName: r.SingularResource, Namespaced: namespaced, Verbs: r.Verbs, ShortNames: r.ShortNames, Categories: r.Categories,
		}
		if r.ResponseKind != nil {
			one.Kind = r.ResponseKind.Kind
		}
		out.listed = append(out.listed, one)
		for _, sub := range r.Subresources {
			one := metav1.APIResource{Name: r.Resource + "/" + sub.Subresource, Namespaced: namespaced, Verbs: sub.Verbs}
			if sub.ResponseKind != nil {
				one.Kind = sub.ResponseKind.Kind
			}
			out.listed = append(out.listed, one)
		}
	}
	return out
}

// viewedOpenAPI adds the OpenAPI v3 handlers of groups and versions to pages.
func (d *Discovery) viewedOpenAPI(pages map[string]http.Handler, all map[schema.GroupVersion]part, can Verbs) error {
	service := handler3.NewOpenAPIService()
	for gv, p := range all {
		doc, err := d.spec(p)
		if err != nil {
			return err
		}
		can.trim(gv.Group, doc.Paths)
		service.UpdateGroupVersion(at(gv), doc)
	}
	hashes, err := hashesOf(service)
	if err != nil {
		return err
	}
	if pages["openapi/v3"], err = newOpenAPIV3Root(hashes); err != nil {
		return err
	}
	for gv := range all {
		pages["openapi/v3/"+at(gv)] = &document{service: service, hash: hashes["/"+at(gv)]}
	}
	return nil
}
