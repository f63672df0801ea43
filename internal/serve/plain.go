package serve

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	endpointhandlers "k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/unforked/kcp/internal/store"
)

// A plainReader answers reads of whole objects in JSON, in the version in which they
// are stored, with what the store has encoded already: upstream's handler copies and
// encodes every object of every answer. It is made of upstream's parts, and leaves to
// upstream's handler all else, such as tables, metadata, YAML, and other versions.
type plainReader struct {
	http.Handler // upstream's
	namespaced   bool
	kind         schema.GroupVersionKind
	parts        func() *plainParts // nil if upstream has none
}

type plainParts struct {
	scope     *endpointhandlers.RequestScope
	get, list http.HandlerFunc
}

// upstreamHandler is upstream's handler of the objects of a definition.
type upstreamHandler interface {
	http.Handler
	GetCustomResourceListerCollectionDeleter(*apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error)
}

// withPlainReads returns a handler that answers plain reads itself where it may.
func withPlainReads(upstream upstreamHandler, crd *apiextensionsv1.CustomResourceDefinition) http.Handler {
	i := slices.IndexFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Storage })
	if i < 0 || !crd.Spec.Versions[i].Served || crd.Spec.Versions[i].Deprecated || callsWebhook(crd) {
		return upstream
	}
	gv := schema.GroupVersion{Group: crd.Spec.Group, Version: crd.Spec.Versions[i].Name}
	h := &plainReader{Handler: upstream, namespaced: crd.Spec.Scope == apiextensionsv1.NamespaceScoped, kind: gv.WithKind(crd.Status.AcceptedNames.Kind)}
	h.parts = sync.OnceValue(func() *plainParts {
		built, err := upstream.GetCustomResourceListerCollectionDeleter(crd)
		objects, ok := built.(*customresource.REST)
		if err != nil || !ok {
			return nil // upstream says what is wrong
		}
		return h.partsOf(objects, crd)
	})
	return h
}

// partsOf returns upstream's handlers of reads, over a storage of the same objects that
// gives them encoded.
func (h *plainReader) partsOf(objects *customresource.REST, crd *apiextensionsv1.CustomResourceDefinition) *plainParts {
	gv, names := h.kind.GroupVersion(), crd.Status.AcceptedNames
	plain := *objects.Store
	plain.NewFunc = func() runtime.Object { return &store.Encoded{} }
	plain.NewListFunc = func() runtime.Object { return store.NewEncodedList(gv.WithKind(names.ListKind)) }
	serializer := encodedSerializer{apiextensions.Codecs}
	scope := &endpointhandlers.RequestScope{
		Namer:      endpointhandlers.ContextBasedNaming{Namer: meta.NewAccessor(), ClusterScoped: !h.namespaced},
		Serializer: serializer,
		StandardSerializers: slices.DeleteFunc(slices.Clone(serializer.SupportedMediaTypes()), func(s runtime.SerializerInfo) bool {
			return s.MediaType == runtime.ContentTypeProtobuf
		}),
		TableConvertor:   objects,
		Resource:         gv.WithResource(names.Plural),
		Kind:             h.kind,
		HubGroupVersion:  gv,
		MetaGroupVersion: metav1.SchemeGroupVersion,
	}
	return &plainParts{scope, endpointhandlers.GetResource(&plain, scope), endpointhandlers.ListResource(&plain, nil, scope, false, 0)}
}

// ServeHTTP implements [http.Handler].
func (h *plainReader) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	info, ok := request.RequestInfoFrom(req.Context())
	var parts *plainParts
	if ok && h.reads(req, info) {
		parts = h.parts()
	}
	if parts == nil || !parts.wanted(req) {
		h.Handler.ServeHTTP(w, req)
		return
	}
	read := parts.get
	if info.Verb == "list" {
		read = parts.list
	}
	metrics.InstrumentHandlerFunc(strings.ToUpper(info.Verb), info.APIGroup, info.APIVersion, info.Resource, "",
		metrics.CleanScope(info), metrics.APIServerComponent, false, "", read)(w, req)
}

// reads reports whether a request reads objects in the version in which they are
// stored, with no parameter for which more is to be known of them.
func (h *plainReader) reads(req *http.Request, info *request.RequestInfo) bool {
	if info.Subresource != "" || info.APIVersion != h.kind.Version {
		return false
	}
	switch info.Verb {
	case "get":
		return h.namespaced == (info.Namespace != "") && onlyParameters(req, "resourceVersion")
	case "list":
		return (h.namespaced || info.Namespace == "") && info.Name == "" &&
			onlyParameters(req, "limit", "continue", "resourceVersion", "resourceVersionMatch", "labelSelector", "timeout", "timeoutSeconds")
	default:
		return false
	}
}

// wanted reports whether a client wants JSON without further ado.
func (p *plainParts) wanted(req *http.Request) bool {
	options, chosen, err := negotiation.NegotiateOutputMediaType(req, p.scope.Serializer, p.scope)
	if err != nil || options.Convert != nil || chosen.MediaType != runtime.ContentTypeJSON || chosen.Serializer == chosen.PrettySerializer {
		return false
	}
	// What is recorded of an answer may leave out a part of its objects.
	recorded := audit.AuditContextFrom(req.Context())
	return recorded == nil || recorded.GetEventLevel().Less(auditapi.LevelRequestResponse)
}

// onlyParameters reports whether a request has no other parameters than these.
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

// An encodedSerializer writes what is encoded already as it is.
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
