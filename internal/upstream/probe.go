package upstream

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

// A probe is a fake status write through a [Handler]. It obtains the RequestScope at admission,
// which the libraries do not export, and ends there.
type probe struct {
	object *unstructured.Unstructured // the object to write
	scope  *handlers.RequestScope
}

type probeKey struct{}

func probeOf(ctx context.Context) *probe {
	p, _ := ctx.Value(probeKey{}).(*probe)
	return p
}

// Probed returns a copy of d whose handler [StatusScope] can probe.
func (d DefinitionHandler) Probed() DefinitionHandler {
	d.Storage, d.Admission = probedOptions{d.Storage}, probedAdmission{d.Admission}
	return d
}

// StatusScope returns the RequestScope with which a handler serves the status subresource of
// crd, a definition in the core group. The handler is that of [DefinitionHandler.Probed].
//
// At the next minor version: look at whether the handler still passes its RequestScope to
// admission as admission.ObjectInterfaces, and reads the object before it calls admission, in
// k8s.io/apiserver/pkg/endpoints/handlers/patch.go.
func StatusScope(h http.Handler, crd *apiextensionsv1.CustomResourceDefinition, version string) (*handlers.RequestScope, error) {
	p := &probe{object: &unstructured.Unstructured{Object: map[string]any{}}}
	p.object.SetGroupVersionKind(schema.GroupVersionKind{Version: version, Kind: crd.Status.AcceptedNames.Kind})
	p.object.SetName("probe")
	p.object.SetUID("probe")
	p.object.SetResourceVersion("1")
	info := &request.RequestInfo{
		IsResourceRequest: true, Verb: "patch", APIPrefix: "api", APIVersion: version, Resource: crd.Status.AcceptedNames.Plural,
		Subresource: "status", Name: p.object.GetName(),
	}
	if crd.Spec.Scope == apiextensionsv1.NamespaceScoped {
		info.Namespace = "probe"
		p.object.SetNamespace(info.Namespace)
	}
	ctx := audit.WithAuditContext(context.WithValue(context.Background(), probeKey{}, p))
	ctx = request.WithNamespace(request.WithRequestInfo(ctx, info), info.Namespace)
	req, err := http.NewRequestWithContext(ctx, http.MethodPatch, "/api/"+version, strings.NewReader("{}"))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", string(types.MergePatchType))
	answer := &response{header: http.Header{}}
	h.ServeHTTP(answer, req)
	if p.scope == nil {
		return nil, fmt.Errorf("probe the handler of the status subresource: %d %s", answer.code, bytes.TrimSpace(answer.body.Bytes()))
	}
	return p.scope, nil
}

// response is a response writer for the error of a probe that failed.
type response struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

// Header implements [http.ResponseWriter].
func (r *response) Header() http.Header { return r.header }

// WriteHeader implements [http.ResponseWriter].
func (r *response) WriteHeader(code int) { r.code = code }

// Write implements [http.ResponseWriter].
func (r *response) Write(b []byte) (int, error) { return r.body.Write(b) }

// probedAdmission keeps the RequestScope of a probe's request and refuses the request.
type probedAdmission struct{ admission.Interface }

var (
	_ admission.MutationInterface   = probedAdmission{}
	_ admission.ValidationInterface = probedAdmission{}
)

// Handles implements [admission.Interface].
func (a probedAdmission) Handles(o admission.Operation) bool {
	return o == admission.Update || a.Interface.Handles(o)
}

// Admit implements [admission.MutationInterface].
func (a probedAdmission) Admit(ctx context.Context, r admission.Attributes, o admission.ObjectInterfaces) error {
	if p := probeOf(ctx); p != nil {
		p.scope, _ = o.(*handlers.RequestScope)
		return apierrors.NewNotFound(r.GetResource().GroupResource(), r.GetName())
	}
	if m, ok := a.Interface.(admission.MutationInterface); ok && m.Handles(r.GetOperation()) {
		return m.Admit(ctx, r, o)
	}
	return nil
}

// Validate implements [admission.ValidationInterface].
func (a probedAdmission) Validate(ctx context.Context, r admission.Attributes, o admission.ObjectInterfaces) error {
	if v, ok := a.Interface.(admission.ValidationInterface); ok && v.Handles(r.GetOperation()) {
		return v.Validate(ctx, r, o)
	}
	return nil
}

// probedOptions decorates storage with [probedStorage].
type probedOptions struct{ generic.RESTOptionsGetter }

// GetRESTOptions implements [generic.RESTOptionsGetter].
func (g probedOptions) GetRESTOptions(gr schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	o, err := g.RESTOptionsGetter.GetRESTOptions(gr, example)
	decorate := o.Decorator
	o.Decorator = func(cfg *storagebackend.ConfigForResource, prefix string, key func(runtime.Object) (string, error), newFunc, newList func() runtime.Object,
		attrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		s, destroy, err := decorate(cfg, prefix, key, newFunc, newList, attrs, triggers, indexers)
		return probedStorage{s}, destroy, err
	}
	return o, err
}

// probedStorage is storage that passes the probe's own object to its update, and other requests
// to the wrapped storage.
type probedStorage struct{ storage.Interface }

// GuaranteedUpdate implements [storage.Interface].
func (s probedStorage) GuaranteedUpdate(ctx context.Context, key string, into runtime.Object, ignoreNotFound bool, p *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object) error {
	if probe := probeOf(ctx); probe != nil {
		_, _, err := update(probe.object, storage.ResponseMeta{ResourceVersion: 1})
		return err
	}
	return s.Interface.GuaranteedUpdate(ctx, key, into, ignoreNotFound, p, update, cached)
}
