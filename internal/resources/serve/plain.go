package serve

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apimachinery/pkg/runtime"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	endpointhandlers "k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/unforked/kcp/internal/storage/registry"
	"github.com/unforked/kcp/internal/storage/watchcache"
	"github.com/unforked/kcp/internal/upstream"
)

// A plainReader serves gets, lists and watches of whole objects in JSON at the storage version.
// It writes the JSON that the store has encoded already, where upstream's handler would
// copy and encode every object of every response. Other requests, such as for tables,
// metadata, YAML and other versions, go to upstream's handler.
type plainReader struct {
	http.Handler // upstream's
	namespaced   bool
	version      string             // of the storage, without the group
	parts        func() *plainParts // returns nil if upstream's storage is not available
}

type plainParts struct {
	scope            *endpointhandlers.RequestScope
	get, list, watch http.HandlerFunc
}

// withPlainReads wraps upstream's handler in a [plainReader]. It returns the handler itself if
// the storage version is not served or deprecated. minWatch is the minimal duration of a watch
// without a timeout.
func withPlainReads(handler upstream.Handler, crd *apiextensionsv1.CustomResourceDefinition, minWatch time.Duration) http.Handler {
	i := slices.IndexFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Storage })
	if i < 0 || !crd.Spec.Versions[i].Served || crd.Spec.Versions[i].Deprecated {
		return handler
	}
	h := &plainReader{Handler: handler, namespaced: crd.Spec.Scope == apiextensionsv1.NamespaceScoped, version: crd.Spec.Versions[i].Name}
	h.parts = sync.OnceValue(func() *plainParts {
		objects, err := upstream.Objects(handler, crd)
		if err != nil {
			return nil // upstream's handler reports the error
		}
		return h.partsOf(objects, crd, minWatch)
	})
	return h
}

// partsOf returns upstream's handlers over a copy of the storage that returns encoded objects.
func (h *plainReader) partsOf(objects *customresource.REST, crd *apiextensionsv1.CustomResourceDefinition, minWatch time.Duration) *plainParts {
	scope := upstream.ReadScope(crd, h.version, objects, encodedSerializer{apiextensions.Codecs})
	plain := *objects.Store
	plain.NewFunc = func() runtime.Object { return &watchcache.Encoded{} }
	plain.NewListFunc = func() runtime.Object {
		return watchcache.NewEncodedList(scope.HubGroupVersion.WithKind(crd.Status.AcceptedNames.ListKind))
	}
	return &plainParts{
		scope: scope, get: endpointhandlers.GetResource(&plain, scope),
		list:  endpointhandlers.ListResource(&plain, nil, scope, false, 0),
		watch: endpointhandlers.ListResource(&plain, &plain, scope, true, minWatch),
	}
}

// ServeHTTP implements [http.Handler].
func (h *plainReader) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	info, ok := request.RequestInfoFrom(req.Context())
	var parts *plainParts
	if ok && h.reads(req, info) && !registry.DecodesObjects(req.Context()) { // labels are in them
		parts = h.parts()
	}
	if parts == nil || !parts.wanted(req) {
		h.Handler.ServeHTTP(w, req)
		return
	}
	read := parts.get
	switch info.Verb {
	case "list":
		read = parts.list
	case "watch":
		read, req = parts.watch, req.WithContext(watchcache.WithEncodedEvents(req.Context()))
	}
	metrics.InstrumentHandlerFunc(strings.ToUpper(info.Verb), info.APIGroup, info.APIVersion, info.Resource, "",
		metrics.CleanScope(info), metrics.APIServerComponent, false, "", read)(w, req)
}

// reads reports whether a request gets, lists or watches objects at the storage version, without
// parameters that require decoded objects.
func (h *plainReader) reads(req *http.Request, info *request.RequestInfo) bool {
	if info.Subresource != "" || info.APIVersion != h.version {
		return false
	}
	switch info.Verb {
	case "get":
		return h.namespaced == (info.Namespace != "") && onlyParameters(req, "resourceVersion")
	case "list":
		return (h.namespaced || info.Namespace == "") && info.Name == "" &&
			onlyParameters(req, "limit", "continue", "resourceVersion", "resourceVersionMatch", "labelSelector", "timeout", "timeoutSeconds")
	case "watch": // not with initial events, which end with a bookmark
		return (h.namespaced || info.Namespace == "") && info.Name == "" &&
			onlyParameters(req, "watch", "resourceVersion", "resourceVersionMatch", "labelSelector", "allowWatchBookmarks", "timeout", "timeoutSeconds")
	default:
		return false
	}
}

// wanted reports whether the response is plain JSON: not pretty-printed, not converted
// and not recorded by the audit log.
func (p *plainParts) wanted(req *http.Request) bool {
	options, chosen, err := negotiation.NegotiateOutputMediaType(req, p.scope.Serializer, p.scope)
	if err != nil || options.Convert != nil || chosen.MediaType != runtime.ContentTypeJSON || chosen.Serializer == chosen.PrettySerializer {
		return false
	}
	// The audit log may omit fields of a recorded response, which needs decoded objects.
	recorded := audit.AuditContextFrom(req.Context())
	return recorded == nil || recorded.GetEventLevel().Less(auditapi.LevelRequestResponse)
}

// onlyParameters reports whether all query parameters of a request are in names.
func onlyParameters(req *http.Request, names ...string) bool {
	if req.URL.RawQuery == "" {
		return true
	}
	for name := range req.URL.Query() {
		if !slices.Contains(names, name) {
			return false
		}
	}
	return true
}

// An encodedSerializer writes objects that are already encoded as they are.
type encodedSerializer struct{ runtime.NegotiatedSerializer }

// EncoderForVersion implements [runtime.NegotiatedSerializer].
func (s encodedSerializer) EncoderForVersion(e runtime.Encoder, gv runtime.GroupVersioner) runtime.Encoder {
	return encodedEncoder{s.NegotiatedSerializer.EncoderForVersion(e, gv)}
}

type encodedEncoder struct{ runtime.Encoder }

// Encode implements [runtime.Encoder].
func (e encodedEncoder) Encode(o runtime.Object, w io.Writer) error {
	if done, ok := o.(interface{ Encode(io.Writer) error }); ok {
		return done.Encode(w)
	}
	return e.Encoder.Encode(o, w)
}
