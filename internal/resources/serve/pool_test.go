package serve

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
)

func gadgets(group string) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "gadgets." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "gadgets", Singular: "gadget", Kind: "Gadget", ListKind: "GadgetList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
			}},
		},
	}
}

// noStorage refuses every resource.
type noStorage struct{ asked int }

func (n *noStorage) GetRESTOptions(schema.GroupResource, runtime.Object) (generic.RESTOptions, error) {
	n.asked++
	return generic.RESTOptions{}, http.ErrNotSupported
}

// The first request for a content builds its only handler. Unserved resources are 404. A content
// that cannot be served returns its error.
func TestPool(t *testing.T) {
	shape := catalog.NewShape(catalog.Served{Content: contentOf(t, "example.com")})
	storage := &noStorage{}
	p := NewPool(PoolConfig{
		Resolver: catalog.NewResolver(func(cluster.Name) *catalog.Shape { return shape }), Storage: storage,
		Native: func(schema.GroupResource) bool { return false }, Fresh: func(context.Context) bool { return false },
		Models: func() map[string]*spec.Schema { return nil },
	})
	defer p.Close()
	served := p.Wrap(http.NotFoundHandler())
	get := func(info *request.RequestInfo) *httptest.ResponseRecorder {
		req := httptest.NewRequestWithContext(request.WithRequestInfo(t.Context(), info), http.MethodGet, "/apis/example.com/v1/gadgets", nil)
		w := httptest.NewRecorder()
		served.ServeHTTP(w, req)
		return w
	}
	for _, info := range []*request.RequestInfo{
		{IsResourceRequest: true, Verb: "list", APIGroup: "example.com", APIVersion: "v1", Resource: "gizmos"},
		{IsResourceRequest: true, Verb: "list", APIGroup: "other.com", APIVersion: "v1", Resource: "gadgets"},
		{Path: "/apis/example.com"},
	} {
		if w := get(info); w.Code != http.StatusNotFound {
			t.Errorf("%+v is answered %d", info, w.Code)
		}
	}
	if p.Handlers() != 0 {
		t.Errorf("%d handlers for what nobody asked for", p.Handlers())
	}
	for range 3 {
		w := get(&request.RequestInfo{IsResourceRequest: true, Verb: "list", APIGroup: "example.com", APIVersion: "v1", Resource: "gadgets"})
		if w.Code != http.StatusInternalServerError {
			t.Errorf("without storage the answer is %d", w.Code)
		}
	}
	if p.Handlers() != 1 || storage.asked == 0 {
		t.Errorf("%d handlers, storage asked for %d times", p.Handlers(), storage.asked)
	}
}
