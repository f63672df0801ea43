// Package discovery serves the discovery and the OpenAPI of logical clusters and of views. It hides
// how native and custom resources become one document, which clusters share it, and how long it is
// kept.
package discovery

import (
	"context"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/common"

	"github.com/unforked/kcp/internal/memory/recent"
	"github.com/unforked/kcp/internal/network/inprocess"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/serve"
)

// Cache limits, in entries. Discovery and hashes of a shape take a few KB. An OpenAPI v3
// document takes a few hundred KB, and is rebuilt on demand. An OpenAPI v2 document takes
// about 1 MB, because it contains all native kinds.
const (
	maxGroups    = 1024
	maxOpenAPIV3 = 1024
	maxHashes    = 8192
	maxDocuments = 64
	maxOpenAPIV2 = 8
	maxIdle      = 10 * time.Minute
)

// aggregatedJSON is the media type of aggregated discovery.
const aggregatedJSON = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// A Discovery serves the discovery and OpenAPI of clusters, with native and custom
// resources merged. It builds documents on demand, once for all clusters of a shape, and
// holds nothing per cluster.
type Discovery struct {
	// Subresources are in discovery with their resources. Set it before the first request.
	Subresources serve.Subresources

	configV2 *common.Config
	configV3 *common.OpenAPIV3Config

	base    *genericapiserver.GenericAPIServer
	openAPI *nativeOpenAPI
	shapeOf func(context.Context) *catalog.Shape
	codecs  serializer.CodecFactory // of aggregated discovery

	offered   *recent.Cache[*catalog.Offers, map[schema.GroupVersion]resources]
	natives   *recent.Cache[string, []apidiscoveryv2.APIGroupDiscovery] // native groups, by "api" or "apis"
	groups    *recent.Cache[catalog.Hash, map[string]http.Handler]      // by shape, then by path without outer slashes
	openAPIV2 *recent.Cache[catalog.Hash, http.Handler]                 // by shape
	openAPIV3 *recent.Cache[catalog.Hash, *openAPIV3]                   // by shape
	hashes    *recent.Cache[catalog.Hash, string]                       // hashes of documents, by key of the part
	documents *recent.Cache[catalog.Hash, *document]                    // by key of the part
	views     *recent.Cache[catalog.Hash, http.Handler]                 // by shape
}

// NewDiscovery returns the discovery of a server's clusters. shapeOf returns the custom
// resources of a request's cluster; nil means none. config is that of base, which must not install
// OpenAPI itself. All groups of base must be installed, and base prepared to run, before the first
// request.
func NewDiscovery(base *genericapiserver.GenericAPIServer, config *genericapiserver.Config, shapeOf func(context.Context) *catalog.Shape) *Discovery {
	scheme := runtime.NewScheme()
	utilruntime.Must(apidiscoveryv2.AddToScheme(scheme))
	return &Discovery{
		base: base, shapeOf: shapeOf, codecs: serializer.NewCodecFactory(scheme),
		configV2: config.OpenAPIConfig, configV3: config.OpenAPIV3Config, openAPI: installOpenAPI(base, config.OpenAPIConfig, config.OpenAPIV3Config),
		offered:   recent.New[*catalog.Offers, map[schema.GroupVersion]resources](2, maxIdle),
		natives:   recent.New[string, []apidiscoveryv2.APIGroupDiscovery](2, maxIdle),
		groups:    recent.New[catalog.Hash, map[string]http.Handler](maxGroups, maxIdle),
		openAPIV2: recent.New[catalog.Hash, http.Handler](maxOpenAPIV2, maxIdle),
		openAPIV3: recent.New[catalog.Hash, *openAPIV3](maxOpenAPIV3, maxIdle),
		hashes:    recent.New[catalog.Hash, string](maxHashes, maxIdle),
		documents: recent.New[catalog.Hash, *document](maxDocuments, maxIdle),
		views:     recent.New[catalog.Hash, http.Handler](maxDocuments, maxIdle),
	}
}

// Wrap returns a handler that serves discovery and OpenAPI where custom resources change
// them, and passes other requests to next.
func (d *Discovery) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !describes(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		var page http.Handler
		var err error
		if shape := d.shapeOf(r.Context()); shape != nil && len(shape.All()) > 0 {
			page, err = d.page(r, shape)
		}
		if err == nil && page == nil {
			page, err = d.moved(r)
		}
		switch {
		case err != nil:
			err = apierrors.NewInternalError(fmt.Errorf("describe the APIs of this cluster: %w", err))
			responsewriters.ErrorNegotiated(err, d.base.Serializer, schema.GroupVersion{}, w, r)
		case page != nil:
			page.ServeHTTP(w, r)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// describes reports whether path may belong to discovery or OpenAPI. It runs for every
// request, so it must be cheap.
func describes(path string) bool {
	path = strings.TrimSuffix(path, "/")
	switch depth := strings.Count(path, "/"); {
	case strings.HasPrefix(path, "/openapi/"):
		return true
	case path == "/apis" || strings.HasPrefix(path, "/apis/"):
		return depth <= 3
	default:
		return path == "/api" || strings.HasPrefix(path, "/api/") && depth == 2
	}
}

// page returns the handler of a request in clusters of a shape. It returns nil if the
// native server's response is the same.
func (d *Discovery) page(r *http.Request, s *catalog.Shape) (http.Handler, error) {
	path := r.URL.Path
	ctx := context.WithoutCancel(r.Context()) // other requests may wait for the result after this client has gone
	if !strings.HasPrefix(path, "/openapi/") {
		pages, err := d.groups.Get(r.Context(), s.Key, func() (map[string]http.Handler, error) { return d.buildGroups(ctx, s) })
		return pages[strings.Trim(path, "/")], err
	}
	if path == "/openapi/v2" {
		return d.openAPIV2.Get(r.Context(), s.Key, func() (http.Handler, error) { return d.buildOpenAPIV2(ctx, s) })
	}
	name, within := strings.CutPrefix(path, "/openapi/v3")
	if !within {
		return nil, nil
	}
	v3, err := d.openAPIV3.Get(r.Context(), s.Key, func() (*openAPIV3, error) { return d.buildOpenAPIV3(ctx, s) })
	if err != nil {
		return nil, err
	}
	if part, found := v3.parts[name]; found {
		return d.document(r.Context(), part)
	}
	if name == "" {
		return v3.root, nil
	}
	return nil, v3.failed[name]
}

// buildGroups returns the handlers of the discovery paths that contain resources of a
// shape.
func (d *Discovery) buildGroups(ctx context.Context, s *catalog.Shape) (map[string]http.Handler, error) {
	core, others := map[schema.GroupVersion]resources{}, map[schema.GroupVersion]resources{}
	pages := map[string]http.Handler{}
	byVersion, err := d.contents(ctx, s)
	if err != nil {
		return nil, err
	}
	for gv, contents := range byVersion {
		r, err := d.resourcesOf(ctx, gv, contents)
		if err != nil {
			return nil, err
		}
		r = describeSubresources(d.Subresources, gv, r)
		if gv.Group == "" {
			core[gv] = r
		} else {
			others[gv] = r
		}
	}
	if len(core) > 0 {
		merged, err := d.mergeNatives(ctx, pages, "api", core)
		if err != nil {
			return nil, err
		}
		pages["api"], err = d.newRoot(merged, d.base.Handler.Director)
		if err != nil {
			return nil, err
		}
	}
	if len(others) > 0 {
		merged, err := d.mergeNatives(ctx, pages, "apis", others)
		if err != nil {
			return nil, err
		}
		changed := d.groupPages(pages, merged, others)
		pages["apis"], err = d.newRoot(merged, d.groupList(changed))
		if err != nil {
			return nil, err
		}
	}
	return pages, nil
}

// nativeGroups returns the native groups below a root, "api" or "apis". The result is
// shared: callers must not change it.
func (d *Discovery) nativeGroups(ctx context.Context, root string) ([]apidiscoveryv2.APIGroupDiscovery, error) {
	return d.natives.Get(ctx, root, func() ([]apidiscoveryv2.APIGroupDiscovery, error) {
		manager := d.base.AggregatedDiscoveryGroupManager
		if root == "api" {
			manager = d.base.AggregatedLegacyDiscoveryGroupManager
		}
		var list apidiscoveryv2.APIGroupDiscoveryList
		err := inprocess.Fetch(manager, "/"+root, aggregatedJSON, &list)
		return list.Items, err
	})
}

// contents returns the contents that a shape adds to each group and version.
func (d *Discovery) contents(ctx context.Context, s *catalog.Shape) (map[schema.GroupVersion][]*catalog.Content, error) {
	core, err := d.nativeGroups(ctx, "api")
	if err != nil {
		return nil, err
	}
	others, err := d.nativeGroups(ctx, "apis")
	return contentsByVersion(s, slices.Concat(core, others)), err
}

// mergeNatives returns the groups below a root, native and custom. It adds to pages the
// handler of each group and version that has custom resources.
func (d *Discovery) mergeNatives(ctx context.Context, pages map[string]http.Handler, root string, customs map[schema.GroupVersion]resources) ([]apidiscoveryv2.APIGroupDiscovery, error) {
	natives, err := d.nativeGroups(ctx, root)
	if err != nil {
		return nil, err
	}
	for gv, r := range customs {
		if hasVersion(natives, gv) {
			var list metav1.APIResourceList
			if err := inprocess.Fetch(d.base.Handler.Director, "/"+at(gv), "application/json", &list); err != nil {
				return nil, err
			}
			r.listed = slices.Concat(list.APIResources, r.listed)
		}
		lister := discovery.APIResourceListerFunc(func() []metav1.APIResource { return r.listed })
		pages[at(gv)] = getOnly(discovery.NewAPIVersionHandler(d.base.Serializer, gv, lister))
	}
	return mergeGroups(natives, customs), nil
}

func hasVersion(groups []apidiscoveryv2.APIGroupDiscovery, gv schema.GroupVersion) bool {
	return slices.ContainsFunc(groups, func(g apidiscoveryv2.APIGroupDiscovery) bool {
		return g.Name == gv.Group && slices.ContainsFunc(g.Versions, func(v apidiscoveryv2.APIVersionDiscovery) bool {
			return v.Version == gv.Version
		})
	})
}

// groupPages adds to pages the handler of each group that has custom resources, and
// returns these groups in order.
func (d *Discovery) groupPages(pages map[string]http.Handler, groups []apidiscoveryv2.APIGroupDiscovery, customs map[schema.GroupVersion]resources) []metav1.APIGroup {
	changed := map[string]bool{}
	for gv := range customs {
		changed[gv.Group] = true
	}
	var out []metav1.APIGroup
	for _, g := range groups {
		if changed[g.Name] {
			group := groupOf(g)
			pages["apis/"+g.Name] = getOnly(discovery.NewAPIGroupHandler(d.base.Serializer, group))
			out = append(out, group)
		}
	}
	return out
}

// groupList returns a handler of the unaggregated list of groups. Each group in changed
// replaces the native group of its name, or is appended.
func (d *Discovery) groupList(changed []metav1.APIGroup) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		natives, err := d.base.DiscoveryGroupManager.Groups(r.Context(), r)
		if err != nil {
			responsewriters.ErrorNegotiated(apierrors.NewInternalError(err), d.base.Serializer, schema.GroupVersion{}, w, r)
			return
		}
		groups := slices.Clone(natives)
		for _, g := range changed {
			if len(natives) > 0 {
				g.ServerAddressByClientCIDRs = natives[0].ServerAddressByClientCIDRs
			}
			if i := slices.IndexFunc(groups, func(have metav1.APIGroup) bool { return have.Name == g.Name }); i >= 0 {
				groups[i] = g
			} else {
				groups = append(groups, g)
			}
		}
		d.writeGroups(w, r, groups)
	})
}

// writeGroups writes the unaggregated list of groups. It sets the apiVersion of the list,
// as Kubernetes' aggregator does; upstream's own handler leaves it out.
func (d *Discovery) writeGroups(w http.ResponseWriter, r *http.Request, groups []metav1.APIGroup) {
	list := &metav1.APIGroupList{Groups: groups}
	responsewriters.WriteObjectNegotiated(d.base.Serializer, negotiation.DefaultEndpointRestrictions, schema.GroupVersion{}, w, r, http.StatusOK, list, false)
}

// newRoot returns a handler that serves aggregated discovery to clients that accept it,
// and passes other requests to older.
func (d *Discovery) newRoot(groups []apidiscoveryv2.APIGroupDiscovery, older http.Handler) (http.Handler, error) {
	list := apidiscoveryv2.APIGroupDiscoveryList{Items: append([]apidiscoveryv2.APIGroupDiscovery{}, groups...)} // not null
	text, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	etag := fmt.Sprintf("%X", sha512.Sum512(text))
	media := d.codecs.SupportedMediaTypes()
	return getOnly(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		accepted, _ := negotiation.NegotiateMediaTypeOptions(r.Header.Get("Accept"), media, aggregated.DiscoveryEndpointRestrictions)
		if !aggregated.IsAggregatedDiscoveryGVK(accepted.Convert) {
			older.ServeHTTP(w, r)
			return
		}
		answer := list // a copy, because encoding sets its kind and version
		aggregated.ServeHTTPWithETag(&answer, etag, accepted.Convert.GroupVersion(), d.codecs, w, r)
	})), nil
}

// getOnly refuses other methods with 405, as native discovery does.
func getOnly(h http.Handler) http.Handler { return only(h, http.MethodGet) }

func only(h http.Handler, methods ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(methods, r.Method) {
			h.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Allow", strings.Join(methods, ", "))
		http.Error(w, "405: Method Not Allowed", http.StatusMethodNotAllowed)
	})
}
