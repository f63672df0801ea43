package server_test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A webhook converts Endpoints: v1 has spec.hostPort; v2 has spec.host and spec.port.
const (
	v1 = "v1"
	v2 = "v2"
)

func endpoints(version string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "convert.example.com", Version: version, Resource: "endpoints"}
}

// endpointDefinition returns a definition with the given storage version and conversion
// webhook.
func endpointDefinition(stored string, webhook apiextensionsv1.WebhookClientConfig) *apiextensionsv1.CustomResourceDefinition {
	of := func(version string, fields ...string) apiextensionsv1.CustomResourceDefinitionVersion {
		spec := apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{}}
		for _, f := range fields {
			spec.Properties[f] = apiextensionsv1.JSONSchemaProps{Type: "string"}
		}
		return apiextensionsv1.CustomResourceDefinitionVersion{
			Name: version, Served: true, Storage: version == stored,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": spec},
			}},
		}
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "endpoints.convert.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "convert.example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: "endpoints", Singular: "endpoint", Kind: "Endpoint", ListKind: "EndpointList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{of(v1, "hostPort", "note"), of(v2, "host", "port", "note")},
			Conversion: &apiextensionsv1.CustomResourceConversion{
				Strategy: apiextensionsv1.WebhookConverter,
				Webhook:  &apiextensionsv1.WebhookConversion{ClientConfig: &webhook, ConversionReviewVersions: []string{"v1"}},
			},
		},
	}
}

func endpoint(version, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "convert.example.com/" + version, "kind": "Endpoint",
		"metadata": map[string]any{"name": name}, "spec": spec,
	}}
}

// A converter is the webhook of Endpoints.
type converter struct {
	*httptest.Server
	// moods are changes of the response, by object name.
	moods sync.Map
}

// A mood changes the response for an object, or writes its own response and returns true.
type mood func(w http.ResponseWriter, review *apiextensionsv1.ConversionReview) (written bool)

func newConverter(t *testing.T) *converter {
	t.Helper()
	c := &converter{}
	c.Server = httptest.NewUnstartedServer(c)
	c.Config.ErrorLog = log.New(io.Discard, "", 0)
	c.StartTLS()
	t.Cleanup(c.Close)
	return c
}

func (c *converter) client() apiextensionsv1.WebhookClientConfig {
	at := c.URL + "/convert"
	return apiextensionsv1.WebhookClientConfig{URL: &at, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate().Raw})}
}

func (c *converter) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var review apiextensionsv1.ConversionReview
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil || req.URL.Path != "/convert" {
		http.Error(w, fmt.Sprint("no review: ", err), http.StatusBadRequest)
		return
	}
	asked := review.Request
	review.Request, review.Response = nil, &apiextensionsv1.ConversionResponse{UID: asked.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	var in mood
	for _, raw := range asked.Objects {
		o := &unstructured.Unstructured{}
		if err := json.Unmarshal(raw.Raw, &o.Object); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if m, ok := c.moods.Load(o.GetName()); ok {
			in, _ = m.(mood)
		}
		convert(o, asked.DesiredAPIVersion)
		review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Object: o})
	}
	if in != nil && in(w, &review) {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // fails only if the client has gone
}

// convert converts an object correctly.
func convert(o *unstructured.Unstructured, to string) {
	from := o.GetAPIVersion()
	o.SetAPIVersion(to)
	spec, _, _ := unstructured.NestedMap(o.Object, "spec")
	switch {
	case spec == nil || from == to:
	case strings.HasSuffix(to, "/"+v2):
		if hostPort, ok := spec["hostPort"].(string); ok {
			spec["host"], spec["port"], _ = strings.Cut(hostPort, ":")
			delete(spec, "hostPort")
		}
		o.Object["spec"] = spec
	default:
		if host, ok := spec["host"].(string); ok {
			spec["hostPort"] = fmt.Sprint(host, ":", spec["port"])
			delete(spec, "host")
			delete(spec, "port")
		}
		o.Object["spec"] = spec
	}
}

// each returns a mood that changes every converted object.
func each(change func(o *unstructured.Unstructured)) mood {
	return func(_ http.ResponseWriter, review *apiextensionsv1.ConversionReview) bool {
		for _, raw := range review.Response.ConvertedObjects {
			if o, ok := raw.Object.(*unstructured.Unstructured); ok {
				change(o)
			}
		}
		return false
	}
}

// answers returns a mood that writes its own response.
func answers(answer http.HandlerFunc) mood {
	return func(w http.ResponseWriter, _ *apiextensionsv1.ConversionReview) bool {
		answer(w, nil)
		return true
	}
}

// A stall is a mood that does not answer until end is called.
type stall struct {
	reached chan struct{} // receives a value per call
	end     func()
}

func (c *converter) stall(t *testing.T, name string) *stall {
	ended := make(chan struct{})
	s := &stall{make(chan struct{}, 1000), sync.OnceFunc(func() { close(ended) })}
	t.Cleanup(s.end)
	c.moods.Store(name, mood(func(http.ResponseWriter, *apiextensionsv1.ConversionReview) bool {
		s.reached <- struct{}{}
		<-ended
		return false
	}))
	return s
}
