package discovery

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/runtime/schema"
	handler2 "k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/unforked/kcp/internal/network/inprocess"
	"github.com/unforked/kcp/internal/resources/catalog"
)

// groupVersionKinds is the OpenAPI extension that lists the kinds of a schema.
const groupVersionKinds = "x-kubernetes-group-version-kind"

// openAPIV3 is the OpenAPI v3 of the clusters of a shape.
type openAPIV3 struct {
	root   http.Handler
	parts  map[string]part  // by path, such as /apis/apps/v1
	failed map[string]error // errors of parts that cannot be built, by path
}

// A part is the set of custom resources of one group and version.
type part struct {
	gv       schema.GroupVersion
	contents []*catalog.Content
	shared   bool // the group and version has native kinds too
}

// key returns a hash of the part. Equal parts of different shapes have equal keys.
func (p part) key() catalog.Hash {
	sum := sha256.New()
	sum.Write([]byte(at(p.gv) + "\n"))
	for _, c := range p.contents {
		sum.Write(c.Hash[:])
	}
	var key catalog.Hash
	sum.Sum(key[:0])
	return key
}

// buildOpenAPIV3 returns the OpenAPI of a shape. A part that cannot be built is listed
// without a hash, and a request for it gets the error. Other parts are not affected.
func (d *Discovery) buildOpenAPIV3(ctx context.Context, s *catalog.Shape) (*openAPIV3, error) {
	v := &openAPIV3{parts: map[string]part{}, failed: map[string]error{}}
	natives, err := hashesOf(d.openAPI.v3().service)
	if err != nil {
		return nil, err
	}
	byVersion, err := d.contents(ctx, s)
	if err != nil {
		return nil, err
	}
	hashes := maps.Clone(natives)
	for gv, contents := range byVersion {
		path := "/" + at(gv)
		_, shared := natives[path]
		p := part{gv: gv, contents: contents, shared: shared}
		hash, err := d.hashes.Get(ctx, p.key(), func() (string, error) {
			doc, err := d.document(ctx, p)
			if err != nil {
				return "", err
			}
			return doc.hash, nil
		})
		if hashes[path] = hash; err != nil {
			v.failed[path] = err
		} else {
			v.parts[path] = p
		}
	}
	v.root, err = newOpenAPIV3Root(hashes)
	return v, err
}

// document returns the document of a part.
func (d *Discovery) document(ctx context.Context, p part) (*document, error) {
	return d.documents.Get(ctx, p.key(), func() (*document, error) { return d.buildDocument(p) })
}

// newOpenAPIV3Root returns a handler that lists documents with their hashes.
func newOpenAPIV3Root(hashes map[string]string) (http.Handler, error) {
	list := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	for path, hash := range hashes {
		u := url.URL{Path: "/openapi/v3" + path}
		if hash != "" {
			u.RawQuery = url.Values{"hash": {hash}}.Encode()
		}
		list.Paths[strings.TrimPrefix(path, "/")] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: u.String()}
	}
	text, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	etag, built := fmt.Sprintf(`"%X"`, sha512.Sum512(text)), time.Now()
	return getOrHead(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", etag)
		w.Header().Set("Content-Type", "application/json")
		http.ServeContent(w, r, "", built, bytes.NewReader(text))
	})), nil
}

func getOrHead(h http.Handler) http.Handler { return only(h, http.MethodGet, http.MethodHead) }

// hashesOf returns the hashes of a service's documents by path, such as /api/v1.
func hashesOf(service *handler3.OpenAPIService) (map[string]string, error) {
	var list handler3.OpenAPIV3Discovery
	if err := inprocess.Fetch(http.HandlerFunc(service.HandleDiscovery), "/openapi/v3", "application/json", &list); err != nil {
		return nil, err
	}
	out := make(map[string]string, len(list.Paths))
	for path, d := range list.Paths {
		u, err := url.Parse(d.ServerRelativeURL)
		if err != nil {
			return nil, err
		}
		out["/"+path] = u.Query().Get("hash")
	}
	return out, nil
}

// moved returns a handler that redirects a request for a native document with an old
// hash, or answers 404 for a missing document, where the library would serve an empty
// one. It returns nil for other requests.
func (d *Discovery) moved(r *http.Request) (http.Handler, error) {
	path, within := strings.CutPrefix(r.URL.Path, "/openapi/v3/")
	if !within {
		return nil, nil
	}
	hashes, err := hashesOf(d.openAPI.v3().service)
	if err != nil {
		return nil, err
	}
	if hash, found := hashes["/"+path]; found {
		return redirect(r, hash), nil
	}
	return http.NotFoundHandler(), nil
}

// redirect returns a handler that redirects r to the URL with hash, or nil if r has this
// hash or none. The location is relative, because the client's path may begin with the
// cluster, which r no longer contains.
func redirect(r *http.Request, hash string) http.Handler {
	if asked := r.URL.Query().Get("hash"); asked == "" || asked == hash {
		return nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Vary", "Accept")
		w.Header().Set("Location", "?"+url.Values{"hash": {hash}}.Encode())
		w.WriteHeader(http.StatusMovedPermanently)
	})
}

// A document is the OpenAPI v3 document of one part.
type document struct {
	service *handler3.OpenAPIService
	hash    string
}

// ServeHTTP implements [http.Handler].
func (doc *document) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := redirect(r, doc.hash)
	if h == nil {
		h = http.HandlerFunc(doc.service.HandleGroupVersion)
	}
	getOrHead(h).ServeHTTP(w, r)
}

// buildDocument returns the document of a part, including the native kinds of its group
// and version.
func (d *Discovery) buildDocument(p part) (*document, error) {
	merged, err := d.spec(p)
	if err != nil {
		return nil, err
	}
	service := handler3.NewOpenAPIService()
	service.UpdateGroupVersion(at(p.gv), merged)
	hashes, err := hashesOf(service)
	if err != nil {
		return nil, fmt.Errorf("encode OpenAPI of %s: %w", p.gv, err)
	}
	return &document{service: service, hash: hashes["/"+at(p.gv)]}, nil
}

// spec returns the OpenAPI of a part, including the native kinds of its group and version.
func (d *Discovery) spec(p part) (*spec3.OpenAPI, error) {
	var specs []*spec3.OpenAPI
	var native spec3.OpenAPI
	if p.shared {
		service := http.HandlerFunc(d.openAPI.v3().service.HandleGroupVersion)
		if err := inprocess.Fetch(service, "/openapi/v3/"+at(p.gv), "application/json", &native); err != nil {
			return nil, err
		}
		specs = append(specs, &native)
	}
	customs, offers := offered(p.contents)
	for o, contents := range offers {
		if err := addOffered(&native, o, p.gv, contents, d.configV3); err != nil {
			return nil, fmt.Errorf("build OpenAPI of %s: %w", p.gv, err)
		}
	}
	if len(specs) == 0 && len(offers) > 0 {
		specs = append(specs, &native)
	}
	for _, c := range customs {
		whole, err := c.Whole()
		var s *spec3.OpenAPI
		if err == nil {
			s, err = builder.BuildOpenAPIV3(whole, p.gv.Version, openAPIOptions(false))
		}
		if err != nil {
			return nil, fmt.Errorf("build OpenAPI of %s, version %s: %w", c.Definition.Name, p.gv.Version, err)
		}
		s.Paths.Paths = withoutEmptyGroup(s.Paths.Paths)
		if can := storageVerbs(c); can != nil {
			can.trim(p.gv.Group, s.Paths)
		}
		specs = append(specs, s)
	}
	merged, err := builder.MergeSpecsV3(specs...)
	if err != nil {
		return nil, fmt.Errorf("build OpenAPI of %s: %w", p.gv, err)
	}
	if p.shared || len(offers) > 0 { // keep the fields that merging drops, such as security schemes
		whole, components := native, *native.Components
		components.Schemas = merged.Components.Schemas
		whole.Paths, whole.Components = merged.Paths, &components
		merged = &whole
	}
	return merged, nil
}

func openAPIOptions(v2 bool) builder.Options {
	// The feature gate CustomResourceFieldSelectors is locked to true in upstream.
	return builder.Options{V2: v2, IncludeSelectableFields: true}
}

// withoutEmptyGroup corrects the paths of core resources: the builder writes /apis//v1
// instead of /api/v1.
func withoutEmptyGroup[P any](paths map[string]P) map[string]P {
	out := make(map[string]P, len(paths))
	for path, p := range paths {
		if rest, core := strings.CutPrefix(path, "/apis//"); core {
			path = "/api/" + rest
		}
		out[path] = p
	}
	return out
}

// buildOpenAPIV2 returns a handler for the OpenAPI v2 document of a shape.
func (d *Discovery) buildOpenAPIV2(ctx context.Context, s *catalog.Shape) (http.Handler, error) {
	byVersion, err := d.contents(ctx, s)
	if err != nil {
		return nil, err
	}
	versions := slices.SortedFunc(maps.Keys(byVersion), func(a, b schema.GroupVersion) int {
		return strings.Compare(a.String(), b.String())
	})
	var specs []*spec.Swagger
	static := ownExtensions(d.openAPI.v2().document)
	for _, gv := range versions {
		customs, offers := offered(byVersion[gv])
		for o, contents := range offers {
			if err := addOfferedV2(static, o, gv, contents, d.configV2); err != nil {
				return nil, fmt.Errorf("build OpenAPI version 2 of %s: %w", gv, err)
			}
		}
		for _, c := range customs {
			whole, err := c.Whole()
			var swagger *spec.Swagger
			if err == nil {
				swagger, err = builder.BuildOpenAPIV2(whole, gv.Version, openAPIOptions(true))
			}
			if err != nil {
				return nil, fmt.Errorf("build OpenAPI version 2 of %s, version %s: %w", c.Definition.Name, gv.Version, err)
			}
			swagger.Paths.Paths = withoutEmptyGroup(swagger.Paths.Paths)
			if can := storageVerbs(c); can != nil {
				can.trimV2(gv.Group, swagger.Paths.Paths)
			}
			// Native schemas have no defaults. Schemas that both use must be equal,
			// or merging would keep both.
			swagger.Definitions = handler2.PruneDefaults(swagger.Definitions)
			specs = append(specs, swagger)
		}
	}
	merged, err := builder.MergeSpecs(static, specs...)
	if err != nil {
		return nil, fmt.Errorf("merge OpenAPI version 2: %w", err)
	}
	var registered registered
	handler2.NewOpenAPIService(merged).RegisterOpenAPIVersionedService("/openapi/v2", &registered)
	return getOrHead(registered.Handler), nil
}

// ownExtensions returns a copy of static whose paths, definitions and extensions may be changed. Merging adds
// the kinds of custom resources to shared schemas in place, which must not affect other
// shapes.
func ownExtensions(static *spec.Swagger) *spec.Swagger {
	out := *static
	out.Definitions = maps.Clone(static.Definitions)
	paths := *static.Paths
	paths.Paths = maps.Clone(paths.Paths)
	out.Paths = &paths
	for name, definition := range out.Definitions {
		if _, found := definition.Extensions[groupVersionKinds]; found {
			definition.Extensions = maps.Clone(definition.Extensions)
			out.Definitions[name] = definition
		}
	}
	return &out
}

// registered is a mux that keeps one registered handler.
type registered struct{ http.Handler }

// Handle keeps h.
func (r *registered) Handle(_ string, h http.Handler) { r.Handler = h }
