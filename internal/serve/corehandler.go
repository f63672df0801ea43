package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	endpointhandlers "k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

// A coreHandler serves a content in the core group. It is upstream's handler but for
// one thing: upstream validates that the apiVersion of an object is that of its kind,
// with a slash before the version, which no object without a group has. So objects
// are validated as of a kind in a group that stands in for the core group. Where
// upstream keeps that validation to itself, for writes of the status, these are
// served beside it.
type coreHandler struct {
	http.Handler // upstream's
	admission    admission.Interface
	namespaced   bool

	status *statusOfCore // nil if there is none
	scope  *endpointhandlers.RequestScope
}

// buildCore builds the handler of a definition in the core group.
func (p *Pool) buildCore(d *oneDefinition, from generic.RESTOptionsGetter) (http.Handler, error) {
	o := p.config
	upstream, err := apiextensionsserver.NewCustomResourceDefinitionHandler(nil, nil, d, http.NotFoundHandler(), scoutedOptions{from}, scoutedAdmission{o.Admission},
		nil, nil, nil, 1, o.Authorizer, o.RequestTimeout, o.MinRequestTimeout, p.models(), o.MaxBody)
	if err != nil {
		return nil, err
	}
	built, err := upstream.GetCustomResourceListerCollectionDeleter(d.crd)
	if err != nil {
		return nil, err
	}
	objects, ok := built.(*customresource.REST)
	if !ok {
		return nil, fmt.Errorf("storage of custom resources is a %T", built)
	}
	ways, err := newCoreStrategies(d.crd, objects.CreateStrategy)
	if err != nil {
		return nil, err
	}
	h := &coreHandler{Handler: upstream, admission: o.Admission, namespaced: d.crd.Spec.Scope == apiextensionsv1.NamespaceScoped}
	objects.CreateStrategy, objects.UpdateStrategy = ways.objects, ways.objects // of the scale, too
	if ways.status == nil {
		return h, nil
	}
	store := *objects.Store
	store.UpdateStrategy = ways.status
	h.status = &statusOfCore{&store}
	h.scope, err = scopeOfStatus(upstream, d.crd)
	return h, err
}

// ServeHTTP implements [http.Handler].
func (h *coreHandler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	info, ok := request.RequestInfoFrom(req.Context())
	served := ok && h.status != nil && info.Subresource == "status" && info.APIVersion == coreVersion && (info.Namespace != "") == h.namespaced
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

// upstreamStrategy is what upstream's strategies of custom resources have in common.
type upstreamStrategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	rest.ResetFieldsStrategy
}

// coreStrategy is upstream's strategy of a kind in the group that stands in.
type coreStrategy struct{ upstreamStrategy }

// Validate implements [rest.RESTCreateStrategy].
func (s coreStrategy) Validate(ctx context.Context, o runtime.Object) field.ErrorList {
	return ofCore(s.upstreamStrategy.Validate(ctx, inStandIn(o)))
}

// ValidateUpdate implements [rest.RESTUpdateStrategy].
func (s coreStrategy) ValidateUpdate(ctx context.Context, o, old runtime.Object) field.ErrorList {
	return ofCore(s.upstreamStrategy.ValidateUpdate(ctx, inStandIn(o), inStandIn(old)))
}

// inStandIn returns an object as of the group that stands in for the core group. It
// shares everything with o but its apiVersion, which stays wrong if it is.
func inStandIn(o runtime.Object) runtime.Object {
	u, ok := o.(*unstructured.Unstructured)
	if !ok || u.GetAPIVersion() != coreVersion {
		return o
	}
	out := &unstructured.Unstructured{Object: maps.Clone(u.Object)}
	out.SetAPIVersion(coreGroup + "/" + coreVersion)
	return out
}

// ofCore returns errors about an object in the group that stands in as what they are in
// the core group.
func ofCore(errs field.ErrorList) field.ErrorList {
	for _, e := range errs {
		if e.Field == "apiVersion" {
			e.Detail = "must be " + coreVersion
		}
	}
	return errs
}

// coreStrategies are the strategies of a definition in the core group.
type coreStrategies struct {
	objects coreStrategy
	status  upstreamStrategy // nil if there is none
}

// newCoreStrategies compiles a definition, as upstream does for other groups.
func newCoreStrategies(crd *apiextensionsv1.CustomResourceDefinition, typer runtime.ObjectTyper) (*coreStrategies, error) {
	var internal apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd.DeepCopy(), &internal, nil); err != nil {
		return nil, err
	}
	of, err := apiextensions.GetSchemaForVersion(&internal, coreVersion)
	if err != nil {
		return nil, err
	}
	sub, err := apiextensions.GetSubresourcesForVersion(&internal, coreVersion)
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
	shape, err := structural.NewStructural(of.OpenAPIV3Schema)
	if err != nil {
		return nil, err
	}
	shape = shape.DeepCopy() // it shares its defaults with the definition
	if err := defaulting.PruneDefaults(shape); err != nil {
		return nil, err
	}
	kind := schema.GroupVersionKind{Group: coreGroup, Version: coreVersion, Kind: crd.Status.AcceptedNames.Kind}
	s := customresource.NewStrategy(typer, crd.Spec.Scope == apiextensionsv1.NamespaceScoped, kind, validator, statusValidator, shape, sub.Status, sub.Scale,
		crd.Spec.Versions[0].SelectableFields)
	ways := &coreStrategies{objects: coreStrategy{s}}
	if sub.Status != nil {
		ways.status = coreStrategy{customresource.NewStatusStrategy(s)}
	}
	return ways, nil
}

// A scout goes the way of a write of a status, up to where upstream shows what it
// serves that with, and no further.
type scout struct {
	object *unstructured.Unstructured // that would be written
	scope  *endpointhandlers.RequestScope
}

type scoutKey struct{}

func scoutOf(ctx context.Context) *scout {
	s, _ := ctx.Value(scoutKey{}).(*scout)
	return s
}

// scopeOfStatus returns what upstream serves the status of a definition's objects with.
func scopeOfStatus(upstream http.Handler, crd *apiextensionsv1.CustomResourceDefinition) (*endpointhandlers.RequestScope, error) {
	s := &scout{object: &unstructured.Unstructured{Object: map[string]any{}}}
	s.object.SetGroupVersionKind(schema.GroupVersionKind{Version: coreVersion, Kind: crd.Status.AcceptedNames.Kind})
	s.object.SetName("scout")
	s.object.SetUID("scout")
	s.object.SetResourceVersion("1")
	info := &request.RequestInfo{
		IsResourceRequest: true, Verb: "patch", APIPrefix: "api", APIVersion: coreVersion, Resource: crd.Status.AcceptedNames.Plural,
		Subresource: "status", Name: s.object.GetName(),
	}
	if crd.Spec.Scope == apiextensionsv1.NamespaceScoped {
		info.Namespace = "scout"
		s.object.SetNamespace(info.Namespace)
	}
	ctx := audit.WithAuditContext(context.WithValue(context.Background(), scoutKey{}, s))
	ctx = request.WithNamespace(request.WithRequestInfo(ctx, info), info.Namespace)
	req, err := http.NewRequestWithContext(ctx, http.MethodPatch, "/api/"+coreVersion, strings.NewReader("{}"))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", string(types.MergePatchType))
	said := &answer{header: http.Header{}}
	upstream.ServeHTTP(said, req)
	if s.scope == nil {
		return nil, fmt.Errorf("learn how a status is served: %d %s", said.code, bytes.TrimSpace(said.body.Bytes()))
	}
	return s.scope, nil
}

// scoutedAdmission is where a scout finds what it looks for, and turns back.
type scoutedAdmission struct{ admission.Interface }

var (
	_ admission.MutationInterface   = scoutedAdmission{}
	_ admission.ValidationInterface = scoutedAdmission{}
)

// Handles implements [admission.Interface].
func (a scoutedAdmission) Handles(o admission.Operation) bool {
	return o == admission.Update || a.Interface.Handles(o)
}

// Admit implements [admission.MutationInterface].
func (a scoutedAdmission) Admit(ctx context.Context, r admission.Attributes, o admission.ObjectInterfaces) error {
	if s := scoutOf(ctx); s != nil {
		s.scope, _ = o.(*endpointhandlers.RequestScope)
		return apierrors.NewNotFound(r.GetResource().GroupResource(), r.GetName())
	}
	if m, ok := a.Interface.(admission.MutationInterface); ok && m.Handles(r.GetOperation()) {
		return m.Admit(ctx, r, o)
	}
	return nil
}

// Validate implements [admission.ValidationInterface].
func (a scoutedAdmission) Validate(ctx context.Context, r admission.Attributes, o admission.ObjectInterfaces) error {
	if v, ok := a.Interface.(admission.ValidationInterface); ok && v.Handles(r.GetOperation()) {
		return v.Validate(ctx, r, o)
	}
	return nil
}

// scoutedOptions gives storage in which a scout finds an object.
type scoutedOptions struct{ generic.RESTOptionsGetter }

// GetRESTOptions implements [generic.RESTOptionsGetter].
func (g scoutedOptions) GetRESTOptions(gr schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	o, err := g.RESTOptionsGetter.GetRESTOptions(gr, example)
	decorate := o.Decorator
	o.Decorator = func(cfg *storagebackend.ConfigForResource, prefix string, key func(runtime.Object) (string, error), newFunc, newList func() runtime.Object,
		attrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		s, destroy, err := decorate(cfg, prefix, key, newFunc, newList, attrs, triggers, indexers)
		return scoutedStorage{s}, destroy, err
	}
	return o, err
}

// scoutedStorage is storage in which a scout finds an object.
type scoutedStorage struct{ storage.Interface }

// GuaranteedUpdate implements [storage.Interface].
func (s scoutedStorage) GuaranteedUpdate(ctx context.Context, key string, into runtime.Object, ignoreNotFound bool, p *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object) error {
	if scout := scoutOf(ctx); scout != nil {
		_, _, err := update(scout.object, storage.ResponseMeta{ResourceVersion: 1})
		return err
	}
	return s.Interface.GuaranteedUpdate(ctx, key, into, ignoreNotFound, p, update, cached)
}
