package discovery

import (
	"net/http"
	"sync"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// nativeOpenAPI is the OpenAPI of the native kinds of a server. Upstream builds it at each start,
// which takes half of the processor time of a start. So the first request builds it.
type nativeOpenAPI struct {
	v2 func() nativeV2
	v3 func() nativeV3
}

type nativeV2 struct {
	document *spec.Swagger // shared, so it never changes
	handler  http.Handler
}

type nativeV3 struct {
	service *handler3.OpenAPIService
	handler http.Handler
}

// installOpenAPI serves the OpenAPI of the native kinds of a server, which must not install it
// itself. All groups must be installed before the first request.
func installOpenAPI(of *genericapiserver.GenericAPIServer, v2 *common.Config, v3 *common.OpenAPIV3Config) *nativeOpenAPI {
	n := &nativeOpenAPI{
		v2: sync.OnceValue(func() nativeV2 {
			handler := mux.NewPathRecorderMux("openapi v2")
			own := *v2 // the builder completes it, while others read v2
			_, document := routes.OpenAPI{Config: &own}.InstallV2(of.Handler.GoRestfulContainer, handler)
			return nativeV2{document, handler}
		}),
		v3: sync.OnceValue(func() nativeV3 {
			handler := mux.NewPathRecorderMux("openapi v3")
			own := *v3
			own.Definitions = v3.GetDefinitions(func(name string) spec.Ref { // once for all groups
				name, _ = v3.GetDefinitionName(name)
				return spec.MustCreateRef("#/components/schemas/" + common.EscapeJsonPointer(name))
			})
			return nativeV3{routes.OpenAPI{V3Config: &own}.InstallV3(of.Handler.GoRestfulContainer, handler), handler}
		}),
	}
	paths := of.Handler.NonGoRestfulMux
	paths.HandleFunc("/openapi/v2", func(w http.ResponseWriter, r *http.Request) { n.v2().handler.ServeHTTP(w, r) })
	third := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { n.v3().handler.ServeHTTP(w, r) })
	paths.Handle("/openapi/v3", third)
	paths.HandlePrefix("/openapi/v3/", third)
	return n
}
