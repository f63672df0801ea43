package serve

import (
	"context"
	"mime"
	"net/http"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/response"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/upstream"
)

// anywhere returns a handler that lists or watches the metadata of a custom resource in
// all clusters. It returns nil for other requests. Versions and schemas may differ
// between clusters, so only metadata can be served.
func (p *Pool) anywhere(req *http.Request, c cluster.Name, info *request.RequestInfo) http.Handler {
	gr := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	reads := info.Verb == "list" || info.Verb == "watch"
	if gr.Group == "" && info.APIVersion != catalog.CoreVersion {
		return nil
	}
	if c != cluster.All || !reads || info.Subresource != "" || !wantsMetadata(req) || !p.config.Resolver.Anywhere(gr) {
		return nil
	}
	content, err := anyContent(gr, info.APIVersion)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err == nil {
			key := handlerKey{content: content.Hash, tenant: cluster.All}
			var h http.Handler
			var done func()
			if h, done, err = p.handlers.of(key, content, func(d *upstream.Definition) (http.Handler, error) { return p.build(d, p.config.Metadata, nil) }); err == nil {
				defer response.WhenServed(req.Context(), done)
				h.ServeHTTP(w, req)
				return
			}
		}
		responsewriters.ErrorNegotiated(err, apiextensions.Codecs, gr.WithVersion(info.APIVersion).GroupVersion(), w, req)
	})
}

// wantsMetadata reports whether a client prefers metadata to whole objects.
func wantsMetadata(req *http.Request) bool {
	first, _, _ := strings.Cut(req.Header.Get("Accept"), ",")
	_, parameters, err := mime.ParseMediaType(first)
	return err == nil && strings.HasPrefix(parameters["as"], "PartialObjectMetadata") && parameters["g"] == "meta.k8s.io"
}

// anyContent returns a content without a schema, for a resource of any definition.
func anyContent(gr schema.GroupResource, version string) (*catalog.Content, error) {
	preserve := true
	crd := &apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Group: gr.Group, Scope: apiextensionsv1.NamespaceScoped, // lists of all namespaces also hold cluster-scoped objects
		Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: gr.Resource, Singular: gr.Resource, Kind: "Any", ListKind: "AnyList"},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
			Name: version, Served: true, Storage: true,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &preserve}},
		}},
	}}
	crd.Name = catalog.DefinitionName(gr)
	return catalog.NewContent(crd)
}

type viewedKey struct{}

// WithViewed returns a context for a request through a view, in which the view decides how a
// resource is served: f holds for requests to all clusters, which have no definitions of their
// own.
func WithViewed(ctx context.Context, f catalog.Found) context.Context {
	return context.WithValue(ctx, viewedKey{}, f)
}

// viewedFrom returns the resource gr as a view serves it to all clusters.
func viewedFrom(ctx context.Context, gr schema.GroupResource) (catalog.Found, bool) {
	f, ok := ctx.Value(viewedKey{}).(catalog.Found)
	if c, _ := cluster.From(ctx); !ok || c != cluster.All || f.Content.GroupResource() != gr {
		return catalog.Found{}, false
	}
	return f, true
}
