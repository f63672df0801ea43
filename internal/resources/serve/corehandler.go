package serve

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	endpointhandlers "k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/upstream"
)

// A coreHandler serves a content in the core group with upstream's handler. Upstream's
// validation requires a slash in the apiVersion of an object, which core objects do not
// have. So objects are validated as if they were in a stand-in group. Upstream does not
// export the validation of status writes, so this handler serves these itself.
type coreHandler struct {
	http.Handler // upstream's
	admission    admission.Interface
	namespaced   bool

	status *statusOfCore // nil without a status subresource
	scope  *endpointhandlers.RequestScope
}

// buildCore builds the handler of a definition in the core group.
func (p *Pool) buildCore(d *upstream.Definition, from generic.RESTOptionsGetter) (http.Handler, error) {
	handler, err := p.definitionHandler(d, from, nil).Probed().New()
	if err != nil {
		return nil, err
	}
	objects, err := upstream.Objects(handler, d.CRD)
	if err != nil {
		return nil, err
	}
	strategies, err := newCoreStrategies(d.CRD, objects.CreateStrategy)
	if err != nil {
		return nil, err
	}
	h := &coreHandler{Handler: handler, admission: p.config.Admission, namespaced: d.CRD.Spec.Scope == apiextensionsv1.NamespaceScoped}
	objects.CreateStrategy, objects.UpdateStrategy = named(d.CRD, strategies.objects), strategies.objects // also used by the scale
	if strategies.status == nil {
		return h, nil
	}
	store := *objects.Store
	store.UpdateStrategy = strategies.status
	h.status = &statusOfCore{&store}
	h.scope, err = upstream.StatusScope(handler, d.CRD, catalog.CoreVersion)
	return h, err
}

// ServeHTTP implements [http.Handler].
func (h *coreHandler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	info, ok := request.RequestInfoFrom(req.Context())
	served := ok && h.status != nil && info.Subresource == "status" && info.APIVersion == catalog.CoreVersion && (info.Namespace != "") == h.namespaced
	var write http.HandlerFunc
	switch {
	case served && info.Verb == "update":
		write = endpointhandlers.UpdateResource(h.status, h.scope, h.admission)
	case served && info.Verb == "patch":
		write = endpointhandlers.PatchResource(h.status, h.scope, h.admission, []string{string(types.JSONPatchType), string(types.MergePatchType), string(types.ApplyYAMLPatchType)})
	default:
		h.Handler.ServeHTTP(w, req)
		return
	}
	metrics.InstrumentHandlerFunc(strings.ToUpper(info.Verb), info.APIGroup, info.APIVersion, info.Resource, info.Subresource,
		metrics.CleanScope(info), metrics.APIServerComponent, false, "", write)(w, req)
}

// statusOfCore is the storage of the status of objects in the core group.
type statusOfCore struct{ store *genericregistry.Store }

var _ rest.Patcher = (*statusOfCore)(nil)

// New implements [rest.Patcher].
func (s *statusOfCore) New() runtime.Object { return s.store.New() }

// Get implements [rest.Patcher].
func (s *statusOfCore) Get(ctx context.Context, name string, o *metav1.GetOptions) (runtime.Object, error) {
	return s.store.Get(ctx, name, o)
}

// Update implements [rest.Patcher]. It never creates an object.
func (s *statusOfCore) Update(ctx context.Context, name string, o rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, opts *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return s.store.Update(ctx, name, o, create, update, false, opts)
}

// upstreamStrategy is the interface of upstream's strategies of custom resources.
type upstreamStrategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	rest.ResetFieldsStrategy
}

// coreStrategy is upstream's strategy of a kind in the stand-in group.
type coreStrategy struct{ upstreamStrategy }

// Validate implements [rest.RESTCreateStrategy].
func (s coreStrategy) Validate(ctx context.Context, o runtime.Object) field.ErrorList {
	return ofCore(s.upstreamStrategy.Validate(ctx, inStandIn(o)))
}

// ValidateUpdate implements [rest.RESTUpdateStrategy].
func (s coreStrategy) ValidateUpdate(ctx context.Context, o, old runtime.Object) field.ErrorList {
	return ofCore(s.upstreamStrategy.ValidateUpdate(ctx, inStandIn(o), inStandIn(old)))
}

// inStandIn returns o with the apiVersion of the stand-in group, for validation. A wrong
// apiVersion stays as it is. The result shares all other fields with o.
func inStandIn(o runtime.Object) runtime.Object {
	u, ok := o.(*unstructured.Unstructured)
	if !ok || u.GetAPIVersion() != catalog.CoreVersion {
		return o
	}
	out := &unstructured.Unstructured{Object: maps.Clone(u.Object)}
	out.SetAPIVersion(catalog.CoreGroup + "/" + catalog.CoreVersion)
	return out
}

// ofCore translates errors of the stand-in group to the core group, in place.
func ofCore(errs field.ErrorList) field.ErrorList {
	for _, e := range errs {
		if e.Field == "apiVersion" {
			e.Detail = "must be " + catalog.CoreVersion
		}
	}
	return errs
}

// coreStrategies are the strategies of a definition in the core group.
type coreStrategies struct {
	objects coreStrategy
	status  upstreamStrategy // nil without a status subresource
}

// newCoreStrategies compiles a definition, as upstream does for other groups.
func newCoreStrategies(crd *apiextensionsv1.CustomResourceDefinition, typer runtime.ObjectTyper) (*coreStrategies, error) {
	var internal apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd.DeepCopy(), &internal, nil); err != nil {
		return nil, err
	}
	of, err := apiextensions.GetSchemaForVersion(&internal, catalog.CoreVersion)
	if err != nil {
		return nil, err
	}
	sub, err := apiextensions.GetSubresourcesForVersion(&internal, catalog.CoreVersion)
	if err != nil {
		return nil, err
	}
	if sub == nil {
		sub = &apiextensions.CustomResourceSubresources{}
	}
	if of == nil || of.OpenAPIV3Schema == nil {
		return nil, errors.New("no schema")
	}
	validator, _, err := validation.NewSchemaValidator(of.OpenAPIV3Schema)
	if err != nil {
		return nil, err
	}
	var statusValidator validation.SchemaValidator
	if status, ok := of.OpenAPIV3Schema.Properties["status"]; ok && sub.Status != nil {
		if statusValidator, _, err = validation.NewSchemaValidator(&status); err != nil {
			return nil, err
		}
	}
	shape, err := structuralOf(crd, catalog.CoreVersion)
	if err != nil {
		return nil, err
	}
	kind := schema.GroupVersionKind{Group: catalog.CoreGroup, Version: catalog.CoreVersion, Kind: crd.Status.AcceptedNames.Kind}
	s := customresource.NewStrategy(typer, crd.Spec.Scope == apiextensionsv1.NamespaceScoped, kind, validator, statusValidator, shape, sub.Status, sub.Scale,
		crd.Spec.Versions[0].SelectableFields)
	strategies := &coreStrategies{objects: coreStrategy{s}}
	if sub.Status != nil {
		strategies.status = coreStrategy{customresource.NewStatusStrategy(s)}
	}
	return strategies, nil
}
