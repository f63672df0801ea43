package upstream

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// recordStorage answers gets with one object and counts how often it is destroyed.
type recordStorage struct {
	storage.Interface
	object    *unstructured.Unstructured
	destroyed atomic.Int32
}

func (s *recordStorage) Get(_ context.Context, _ string, _ storage.GetOptions, into runtime.Object) error {
	s.object.DeepCopyInto(into.(*unstructured.Unstructured))
	return nil
}

func (*recordStorage) Versioner() storage.Versioner { return storage.APIObjectVersioner{} }

func (s *recordStorage) GetRESTOptions(gr schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	config := storagebackend.NewDefaultConfig("/", unstructured.UnstructuredJSONScheme).ForResource(gr)
	return generic.RESTOptions{StorageConfig: config, ResourcePrefix: gr.Resource, Decorator: func(*storagebackend.ConfigForResource, string,
		func(runtime.Object) (string, error), func() runtime.Object, func() runtime.Object, storage.AttrFunc, storage.IndexerFuncs, *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		return s, func() { s.destroyed.Add(1) }, nil
	}}, nil
}

// widgets returns an established definition.
func widgets(group string) *apiextensionsv1.CustomResourceDefinition {
	names := apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"}
	open := &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets." + group, UID: "1"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Names: names, Scope: apiextensionsv1.NamespaceScoped,
			Conversion: &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true, Schema: open, Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
			}},
		},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{
			AcceptedNames: names, StoredVersions: []string{"v1"},
			Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{
				{Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue}, {Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue},
			},
		},
	}
}

func newHandler(t *testing.T, group string, s *recordStorage) (DefinitionHandler, *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	crd := widgets(group)
	s.object = &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "a", "namespace": "b"}}}
	return DefinitionHandler{
		Definition: &Definition{CRD: crd}, Storage: s, Admission: admission.NewHandler(admission.Create), Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer(),
		RequestTimeout: time.Minute, MinRequestTimeout: time.Minute, MaxBody: 1 << 20,
	}, crd
}

func got(h http.Handler, info *request.RequestInfo) *httptest.ResponseRecorder {
	req := httptest.NewRequest(http.MethodGet, "/apis/example.com/v1/namespaces/b/widgets/a", nil)
	ctx := request.WithUser(request.WithNamespace(request.WithRequestInfo(req.Context(), info), "b"), &user.DefaultInfo{Name: "u"})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req.WithContext(ctx))
	return w
}

// The libraries' handler serves the one definition that its informer holds, and releases its
// storage when the definition is removed.
func TestDefinitionHandler(t *testing.T) {
	s := &recordStorage{}
	d, crd := newHandler(t, "example.com", s)
	h, err := d.New()
	if err != nil {
		t.Fatal(err)
	}
	info := &request.RequestInfo{IsResourceRequest: true, Verb: "get", APIPrefix: "apis", APIGroup: "example.com", APIVersion: "v1", Namespace: "b", Resource: "widgets", Name: "a"}
	if w := got(h, info); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"name":"a"`) {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	objects, err := Objects(h, crd)
	if err != nil || objects.Store == nil {
		t.Fatalf("storage of the handler: %v, %v", objects, err)
	}
	scope := ReadScope(crd, "v1", objects, apiextensions.Codecs)
	if w := got(handlers.GetResource(objects, scope), info); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"name":"a"`) {
		t.Errorf("with a scope of our own: %d %s", w.Code, w.Body)
	}
	if n := s.destroyed.Load(); n != 0 {
		t.Errorf("the storage was released %d times before the definition was removed", n)
	}
	d.Definition.Remove()
	if w := got(h, info); w.Code != http.StatusNotFound {
		t.Errorf("after the definition was removed: %d %s", w.Code, w.Body)
	}
	for i := 0; s.destroyed.Load() == 0; i++ { // the handler waits for requests in a goroutine
		if i == 5000 {
			t.Fatal("the storage is not released")
		}
		<-time.After(time.Millisecond)
	}
}

// The handler passes its RequestScope to admission, with the serializers for writes.
func TestStatusScope(t *testing.T) {
	d, crd := newHandler(t, "example.com", &recordStorage{})
	crd.Name, crd.Spec.Group = "widgets.", ""
	h, err := d.Probed().New()
	if err != nil {
		t.Fatal(err)
	}
	scope, err := StatusScope(h, crd, "v1")
	if err != nil {
		t.Fatal(err)
	}
	if scope.Subresource != "status" || scope.Kind.Kind != "Widget" || scope.FieldManager == nil || scope.ParameterCodec == nil {
		t.Errorf("%+v", scope)
	}
}
