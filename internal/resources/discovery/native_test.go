package discovery

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/discovery"
	restclient "k8s.io/client-go/rest"
	"k8s.io/component-base/compatibility"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	"sigs.k8s.io/yaml"

	"github.com/unforked/kcp/apis/crds"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
)

// nothing is the storage of a native resource without objects.
type nothing struct {
	kind       func() runtime.Object
	resource   string
	namespaced bool
}

func (n nothing) New() runtime.Object     { return n.kind() }
func (n nothing) Destroy()                {}
func (n nothing) NamespaceScoped() bool   { return n.namespaced }
func (n nothing) GetSingularName() string { return strings.TrimSuffix(n.resource, "s") }
func (n nothing) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: n.resource}, name)
}
func (n nothing) Delete(ctx context.Context, name string, _ rest.ValidateObjectFunc, _ *metav1.DeleteOptions) (runtime.Object, bool, error) {
	_, err := n.Get(ctx, name, nil)
	return nil, false, err
}

// startNative returns a server that is prepared to run, with config maps and
// leases.
func startNative(t *testing.T) (*genericapiserver.GenericAPIServer, *genericapiserver.Config) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, coordinationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	codecs, parameters := serializer.NewCodecFactory(scheme), runtime.NewParameterCodec(scheme)
	config := genericapiserver.NewConfig(codecs)
	config.ExternalAddress = "192.0.2.1:6443"
	config.LoopbackClientConfig = &restclient.Config{}
	config.EffectiveVersion = compatibility.NewEffectiveVersionFromString("1.36", "1.35", "1.35")
	config.BuildHandlerChainFunc = func(h http.Handler, _ *genericapiserver.Config) http.Handler { return h }
	namer := openapi.NewDefinitionNamer(scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(generatedopenapi.GetOpenAPIDefinitions, namer)
	config.SkipOpenAPIInstallation = true
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(generatedopenapi.GetOpenAPIDefinitions, namer)
	server, err := config.Complete(nil).New("test", genericapiserver.NewEmptyDelegate())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Destroy)

	core := genericapiserver.NewDefaultAPIGroupInfo("", scheme, parameters, codecs)
	core.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{
		"configmaps": nothing{func() runtime.Object { return &corev1.ConfigMap{} }, "configmaps", true},
	}
	if err := server.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, &core); err != nil {
		t.Fatal(err)
	}
	leases := genericapiserver.NewDefaultAPIGroupInfo("coordination.k8s.io", scheme, parameters, codecs)
	leases.PrioritizedVersions = []schema.GroupVersion{coordinationv1.SchemeGroupVersion}
	leases.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{
		"leases": nothing{func() runtime.Object { return &coordinationv1.Lease{} }, "leases", true},
	}
	if err := server.InstallAPIGroups(&leases); err != nil {
		t.Fatal(err)
	}
	server.PrepareRun()
	return server, config
}

// A world is a server whose clusters have the shapes of a table.
type world struct {
	*Discovery
	url string
}

// startWorld serves the native kinds in every cluster, and the shapes.
func startWorld(t *testing.T, shapes map[cluster.Name]*catalog.Shape) *world {
	t.Helper()
	native, config := startNative(t)
	d := NewDiscovery(native, config, func(ctx context.Context) *catalog.Shape {
		name, _ := cluster.From(ctx)
		return shapes[name]
	})
	wrapped := d.Wrap(native.Handler)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/clusters/"), "/")
		r = r.WithContext(cluster.With(r.Context(), cluster.Name(name)))
		r.URL.Path = "/" + rest
		wrapped.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return &world{Discovery: d, url: server.URL}
}

func (w *world) client(t *testing.T, name cluster.Name) *discovery.DiscoveryClient {
	t.Helper()
	c, err := discovery.NewDiscoveryClientForConfig(&restclient.Config{Host: w.url + "/clusters/" + string(name)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// get reads a path of a cluster with headers, given as name and value in turn.
// It follows no redirect.
func (w *world) get(t *testing.T, name cluster.Name, path string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	return w.do(t, http.MethodGet, name, path, headers...)
}

func (w *world) do(t *testing.T, method string, name cluster.Name, path string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, w.url+"/clusters/"+string(name)+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	out := httptest.NewRecorder()
	out.Code = response.StatusCode
	maps.Copy(out.Header(), response.Header)
	if _, err := out.Body.ReadFrom(response.Body); err != nil {
		t.Fatal(err)
	}
	return out
}

// own returns the contents of this project's definitions of workspaces, a sample of two groups.
func own(t *testing.T) []*catalog.Content {
	t.Helper()
	var out []*catalog.Content
	for _, name := range crds.Names() {
		if group := catalog.ResourceOfName(name).Group; group != "core.kcp.io" && group != "tenancy.kcp.io" || name == "shards.core.kcp.io" { // Shards are in root alone
			continue
		}
		text, err := crds.YAML(name)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			t.Fatal(err)
		}
		out = append(out, content(t, &crd))
	}
	return out
}

// reversed returns contents in the opposite order.
func reversed(contents []*catalog.Content) []*catalog.Content {
	out := slices.Clone(contents)
	slices.Reverse(out)
	return out
}

func content(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) *catalog.Content {
	t.Helper()
	c, err := catalog.NewContent(crd)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// define returns a definition of namespaced objects with status and scale in the
// given versions, of which the first is stored.
func define(group, plural, kind string, versions ...string) *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: plural, Singular: strings.ToLower(kind), Kind: kind, ListKind: kind + "List",
				ShortNames: []string{plural[:2]}, Categories: []string{"all"},
			},
		},
	}
	for i, v := range versions {
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{
			Name: v, Served: true, Storage: i == 0,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object", Description: kind + " of " + v,
				Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {
					Type: "object",
					Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"replicas": {Type: "integer", Description: "how many of " + plural},
					},
				}},
			}},
			Subresources: &apiextensionsv1.CustomResourceSubresources{
				Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
				Scale: &apiextensionsv1.CustomResourceSubresourceScale{
					SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas",
				},
			},
		})
	}
	return crd
}

func shapeOf(contents ...*catalog.Content) *catalog.Shape {
	var served []catalog.Served
	for _, c := range contents {
		served = append(served, catalog.Served{Content: c})
	}
	return catalog.NewShape(served...)
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: got what has +, want what has -:\n%s", what, diff)
	}
}
