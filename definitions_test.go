package kcp_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp"
)

// widgets returns a definition of about 30 KB in a group.
func widgets(group string) *apiextensionsv1.CustomResourceDefinition {
	fields := map[string]apiextensionsv1.JSONSchemaProps{}
	for i := range 150 {
		fields[fmt.Sprintf("field%d", i)] = apiextensionsv1.JSONSchemaProps{
			Type: "object", Description: "Says how the widget is in this respect, which some of them are in and most are not.",
			Properties: map[string]apiextensionsv1.JSONSchemaProps{"name": {Type: "string"}, "replicas": {Type: "integer", Minimum: new(0.0)}},
		}
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {Type: "object", Properties: fields}},
				}},
			}},
		},
	}
}

// BenchmarkDefinitions reports the memory of one more CustomResourceDefinition with one
// listed object. It compares one definition in many clusters with many definitions in few
// clusters.
func BenchmarkDefinitions(b *testing.B) {
	n := 1_000
	if testing.Short() {
		n = 10
	}
	for name, at := range map[string]func(i int) (cluster, group string){
		"same":      func(i int) (string, string) { return fmt.Sprint("c", i), "example.com" },
		"different": func(i int) (string, string) { return fmt.Sprint("c", i%10), fmt.Sprintf("g%d.example.com", i) },
	} {
		b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
			for b.Loop() {
				benchmarkDefinitions(b, n, at)
			}
		})
	}
}

func benchmarkDefinitions(b *testing.B, n int, at func(int) (cluster, group string)) {
	srv := &kcp.Server{NoSync: true}
	if err := srv.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	defer srv.Close()
	configs := map[string]*rest.Config{}
	for i := range n {
		c, _ := at(i)
		if configs[c] == nil {
			cfg, err := srv.Cluster(b.Context(), c)
			if err != nil {
				b.Fatal(err)
			}
			configs[c] = cfg
		}
	}
	c, _ := at(0)
	define(b, configs[c], "warm.up.example.com")
	heap, running := live(), runtime.NumGoroutine()
	begun := time.Now()
	for i := range n {
		c, group := at(i)
		define(b, configs[c], group)
	}
	took := time.Since(begun)
	b.ReportMetric(float64(took.Microseconds())/float64(n), "µs/definition")
	b.ReportMetric(float64(live()-heap)/float64(n), "heap-B/definition")
	b.ReportMetric(float64(runtime.NumGoroutine()-running)/float64(n), "goroutines/definition")
}

// define creates a definition and an object of it in a cluster, and lists the object.
func define(b *testing.B, cfg *rest.Config, group string) {
	b.Helper()
	definitions, err := apiextensionsclient.NewForConfig(cfg)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := definitions.CustomResourceDefinitions().Create(b.Context(), widgets(group), metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(cfg)
	if err != nil {
		b.Fatal(err)
	}
	all := objects.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"}).Namespace("default")
	w := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"field1": map[string]any{"name": "one"}}}}
	w.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1", Kind: "Widget"})
	w.SetName("first")
	if _, err := all.Create(b.Context(), w, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	if list, err := all.List(b.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		b.Fatalf("lists %d widgets: %v", len(list.Items), err)
	}
}
