package upstream

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// A Handler is the libraries' handler of the objects of one definition.
type Handler interface {
	http.Handler
	GetCustomResourceListerCollectionDeleter(*apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error)
}

// A DefinitionHandler holds the arguments of the libraries' constructor of a [Handler].
type DefinitionHandler struct {
	Definition *Definition
	Storage    generic.RESTOptionsGetter
	Admission  admission.Interface
	// Calls configures the clients of conversion webhooks; nil if there are none.
	Calls      webhook.AuthenticationInfoResolverWrapper
	Authorizer authorizer.Authorizer

	RequestTimeout    time.Duration
	MinRequestTimeout time.Duration
	// Models are the OpenAPI models of the built-in kinds, for managed fields.
	Models  map[string]*spec.Schema
	MaxBody int64
}

// New returns a handler. It serves resources only: paths of discovery panic, because the handler
// gets no discovery handlers.
//
// At the next minor version: look at the order and the meaning of the constructor's parameters,
// several of which have the same type.
func (d DefinitionHandler) New() (Handler, error) {
	return apiextensions.NewCustomResourceDefinitionHandler(nil, nil, d.Definition, http.NotFoundHandler(), d.Storage, d.Admission,
		nil, nil, d.Calls, 1, d.Authorizer, d.RequestTimeout, d.MinRequestTimeout, d.Models, d.MaxBody)
}

// Objects returns the storage of the objects of crd that a handler uses.
//
// At the next minor version: look at whether the handler still returns a *customresource.REST,
// which has no other way to get it.
func Objects(h Handler, crd *apiextensionsv1.CustomResourceDefinition) (*customresource.REST, error) {
	built, err := h.GetCustomResourceListerCollectionDeleter(crd)
	if err != nil {
		return nil, err
	}
	objects, ok := built.(*customresource.REST)
	if !ok {
		return nil, fmt.Errorf("storage of custom resources is a %T", built)
	}
	return objects, nil
}

// ReadScope returns a RequestScope for gets and lists of the objects of crd at a version, like
// the one that the handler of crd has. It has only the fields that reads use. The serializer
// encodes the objects.
//
// At the next minor version: look at the scope in getOrCreateServingInfoFor in
// k8s.io/apiextensions-apiserver/pkg/apiserver/customresource_handler.go, and at which fields
// GetResource and ListResource in k8s.io/apiserver/pkg/endpoints/handlers/get.go use.
func ReadScope(crd *apiextensionsv1.CustomResourceDefinition, version string, objects *customresource.REST, serializer runtime.NegotiatedSerializer) *handlers.RequestScope {
	gv, names := schema.GroupVersion{Group: crd.Spec.Group, Version: version}, crd.Status.AcceptedNames
	return &handlers.RequestScope{
		Namer:      handlers.ContextBasedNaming{Namer: meta.NewAccessor(), ClusterScoped: crd.Spec.Scope == apiextensionsv1.ClusterScoped},
		Serializer: serializer,
		StandardSerializers: slices.DeleteFunc(slices.Clone(serializer.SupportedMediaTypes()), func(s runtime.SerializerInfo) bool {
			return s.MediaType == runtime.ContentTypeProtobuf
		}),
		TableConvertor:   objects,
		Resource:         gv.WithResource(names.Plural),
		Kind:             gv.WithKind(names.Kind),
		HubGroupVersion:  gv,
		MetaGroupVersion: metav1.SchemeGroupVersion,
	}
}
