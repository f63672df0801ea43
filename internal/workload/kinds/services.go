package kinds

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	apiservice "k8s.io/kubernetes/pkg/api/service"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"
	printerstorage "k8s.io/kubernetes/pkg/printers/storage"
	"k8s.io/kubernetes/pkg/registry/core/service"
)

// A workspace has no network of its own, so its Services get no cluster IP, no node port and no IP
// family: the physical clusters give those, each its own. So upstream's storage of Services is
// replaced, which allocates them. The strategies, and so validation and defaults, are upstream's.

// services is the storage of Services.
type services struct{ *genericregistry.Store }

// ShortNames implements [rest.ShortNamesProvider].
func (services) ShortNames() []string { return []string{"svc"} }

// Categories implements [rest.CategoriesProvider].
func (services) Categories() []string { return []string{"all"} }

// serviceStatus is the storage of their status.
type serviceStatus struct{ store *genericregistry.Store }

// New implements [rest.Storage].
func (s serviceStatus) New() runtime.Object { return s.store.New() }

// Destroy implements [rest.Storage]. The storage of Services is destroyed once.
func (serviceStatus) Destroy() {}

// Get implements [rest.Getter].
func (s serviceStatus) Get(ctx context.Context, name string, o *metav1.GetOptions) (runtime.Object, error) {
	return s.store.Get(ctx, name, o)
}

// Update implements [rest.Updater]. It never creates a Service.
func (s serviceStatus) Update(ctx context.Context, name string, o rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, opts *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return s.store.Update(ctx, name, o, create, update, false, opts)
}

// ConvertToTable implements [rest.TableConvertor].
func (s serviceStatus) ConvertToTable(ctx context.Context, o, options runtime.Object) (*metav1.Table, error) {
	return s.store.ConvertToTable(ctx, o, options)
}

func newServices(g generic.RESTOptionsGetter) (rest.Storage, rest.Storage, error) {
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &core.Service{} },
		NewListFunc:               func() runtime.Object { return &core.ServiceList{} },
		PredicateFunc:             service.Matcher,
		DefaultQualifiedResource:  core.Resource("services"),
		SingularQualifiedResource: core.Resource("service"),
		ReturnDeletedObject:       true,
		CreateStrategy:            creating{service.Strategy},
		UpdateStrategy:            updating{service.Strategy},
		DeleteStrategy:            service.Strategy,
		ResetFieldsStrategy:       service.Strategy,
		TableConvertor:            printerstorage.TableConvertor{TableGenerator: printers.NewTableGenerator().With(printersinternal.AddHandlers)},
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: g, AttrFunc: service.GetAttrs}); err != nil {
		return nil, nil, err
	}
	status := *store
	status.UpdateStrategy, status.ResetFieldsStrategy = service.StatusStrategy, service.StatusStrategy
	return services{store}, statusOf(&status), nil
}

// statusOf is a storage whose managed fields are those of the status.
func statusOf(s *genericregistry.Store) rest.Storage {
	return struct {
		serviceStatus
		rest.ResetFieldsStrategy
	}{serviceStatus{s}, s.ResetFieldsStrategy}
}

// creating is upstream's strategy. It sets the field clusterIPs to clusterIP, as upstream's
// storage does: both are needed for a Service without a cluster IP ("None").
type creating struct{ rest.RESTCreateStrategy }

// PrepareForCreate implements [rest.RESTCreateStrategy].
func (s creating) PrepareForCreate(ctx context.Context, o runtime.Object) {
	s.RESTCreateStrategy.PrepareForCreate(ctx, o)
	if now, ok := o.(*core.Service); ok && now.Spec.ClusterIP != "" && len(now.Spec.ClusterIPs) == 0 {
		now.Spec.ClusterIPs = []string{now.Spec.ClusterIP}
	}
}

// Validate implements [rest.RESTCreateStrategy].
func (s creating) Validate(ctx context.Context, o runtime.Object) field.ErrorList {
	return s.RESTCreateStrategy.Validate(ctx, withPort(o, unallocated))
}

// unallocated stands for the port of health checks in validation, which requires one.
const unallocated = 1

// withPort returns a Service with a port of health checks, if it needs one and has none.
func withPort(o runtime.Object, port int32) runtime.Object {
	s, ok := o.(*core.Service)
	if !ok || s.Spec.HealthCheckNodePort != 0 || !apiservice.NeedsHealthCheck(s) {
		return o
	}
	out := *s
	out.Spec.HealthCheckNodePort = port
	return &out
}

// portOf returns the port of health checks of a Service, [unallocated] if it has none.
func portOf(o runtime.Object) int32 {
	if s, ok := o.(*core.Service); ok && s.Spec.HealthCheckNodePort != 0 {
		return s.Spec.HealthCheckNodePort
	}
	return unallocated
}

// updating is upstream's strategy with the same additions.
type updating struct{ rest.RESTUpdateStrategy }

// ValidateUpdate implements [rest.RESTUpdateStrategy].
func (s updating) ValidateUpdate(ctx context.Context, o, old runtime.Object) field.ErrorList {
	return s.RESTUpdateStrategy.ValidateUpdate(ctx, withPort(o, portOf(old)), withPort(old, portOf(o)))
}

// PrepareForUpdate implements [rest.RESTUpdateStrategy].
func (s updating) PrepareForUpdate(ctx context.Context, o, old runtime.Object) {
	s.RESTUpdateStrategy.PrepareForUpdate(ctx, o, old)
	now, ok := o.(*core.Service)
	was, ok2 := old.(*core.Service)
	if !ok || !ok2 {
		return
	}
	switch spec := &now.Spec; {
	case spec.ClusterIP == "" && was.Spec.ClusterIP != "" && len(spec.ClusterIPs) > 0 && len(was.Spec.ClusterIPs) > 0 && spec.ClusterIPs[0] == was.Spec.ClusterIPs[0]:
		spec.ClusterIPs = nil // a client that knows clusterIP alone has cleared it
	case spec.ClusterIP != "" && spec.ClusterIP != was.Spec.ClusterIP && (len(spec.ClusterIPs) == 0 || len(was.Spec.ClusterIPs) > 0 && spec.ClusterIPs[0] == was.Spec.ClusterIPs[0]):
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
}
