package virtual

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	cacheapi "github.com/unforked/kcp/apis/cache/v1alpha1"
	"github.com/unforked/kcp/internal/resources/catalog"
)

// A provider writes the endpoints in an object of its own kind, whose schema may allow anything.
func TestEndpointFor(t *testing.T) {
	by := func(url string, shards *apisv1alpha1.EndpointShards) apisv1alpha1.Endpoint {
		return apisv1alpha1.Endpoint{URL: url, Shards: shards}
	}
	matches := func(m map[string]string) *apisv1alpha1.EndpointShards {
		return &apisv1alpha1.EndpointShards{Selector: &metav1.LabelSelector{MatchLabels: m}}
	}
	malformed := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "region", Operator: "Near"}}}
	region, both := matches(map[string]string{"region": "eu"}), matches(map[string]string{"region": "eu", "tier": "a"})
	all, none := &apisv1alpha1.EndpointShards{MatchAll: true}, matches(map[string]string{"region": "us"})
	for name, c := range map[string]struct {
		all  []apisv1alpha1.Endpoint
		want string
	}{
		"no endpoint":            {nil, ""},
		"one without shards":     {[]apisv1alpha1.Endpoint{by("x", nil)}, "x"},
		"none for this shard":    {[]apisv1alpha1.Endpoint{by("x", none)}, ""},
		"most requirements":      {[]apisv1alpha1.Endpoint{by("all", all), by("region", region), by("both", both), by("x", none), by("any", nil)}, "both"},
		"all before none":        {[]apisv1alpha1.Endpoint{by("any", nil), by("all", all)}, "all"},
		"the first of equals":    {[]apisv1alpha1.Endpoint{by("1", region), by("2", region)}, "1"},
		"an empty selector":      {[]apisv1alpha1.Endpoint{by("any", nil), by("empty", matches(nil)), by("all", all)}, "empty"},
		"no selector":            {[]apisv1alpha1.Endpoint{by("x", &apisv1alpha1.EndpointShards{}), by("any", nil)}, "any"},
		"a malformed selector":   {[]apisv1alpha1.Endpoint{by("x", &apisv1alpha1.EndpointShards{Selector: malformed}), by("any", nil)}, "any"},
		"all, and malformed":     {[]apisv1alpha1.Endpoint{by("x", &apisv1alpha1.EndpointShards{MatchAll: true, Selector: malformed}), by("any", nil)}, "x"},
		"all, and for others":    {[]apisv1alpha1.Endpoint{by("x", &apisv1alpha1.EndpointShards{MatchAll: true, Selector: none.Selector})}, "x"},
		"all, and a selector":    {[]apisv1alpha1.Endpoint{by("x", &apisv1alpha1.EndpointShards{MatchAll: true, Selector: both.Selector}), by("region", region)}, "region"},
		"an endpoint without it": {[]apisv1alpha1.Endpoint{by("", nil), by("", all)}, ""},
	} {
		if got := endpointFor(c.all, labels.Set{"region": "eu", "tier": "a"}); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Objects of a provider can be served by a schema of the same scope that has their stored version.
func TestUnlike(t *testing.T) {
	content := func(scope apiextensionsv1.ResourceScope, storage string, others ...string) *catalog.Content {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		crd.Name, crd.Spec.Group, crd.Spec.Scope = "widgets.example.com", "example.com", scope
		crd.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"}
		for _, name := range append(others, storage) {
			crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{
				Name: name, Served: true, Storage: name == storage,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
			})
		}
		c, err := catalog.NewContent(crd)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	const cluster, namespaced = apiextensionsv1.ClusterScoped, apiextensionsv1.NamespaceScoped
	for name, c := range map[string]struct {
		stored, served *catalog.Content
		why            string // a part of the text
	}{
		"equal":                       {content(cluster, "v1"), content(cluster, "v1"), ""},
		"another storage version":     {content(cluster, "v1"), content(cluster, "v2", "v1"), ""},
		"a version that is not there": {content(cluster, "v2", "v1"), content(cluster, "v1"), "version v2"},
		"only an unstored version":    {content(cluster, "v1", "v2"), content(cluster, "v2"), "version v1"},
		"another scope":               {content(namespaced, "v1"), content(cluster, "v1"), "Namespaced for the provider, and Cluster"},
	} {
		got := unlike(c.stored, c.served)
		if (got == "") != (c.why == "") || !strings.Contains(got, c.why) {
			t.Errorf("%s: %q, want %q", name, got, c.why)
		}
	}
}

// Without a selector all objects are published, with an empty one too. A malformed selector
// publishes nothing.
func TestCachedOf(t *testing.T) {
	r := &cacheapi.ClusterCachedResource{}
	if got, err := cachedOf(r); err != nil || !got.Part.Has(labels.Set{"a": "b"}) {
		t.Errorf("no selector: %+v, %v", got, err)
	}
	r.Spec.LabelSelector = &metav1.LabelSelector{}
	if got, err := cachedOf(r); err != nil || !got.Part.Has(labels.Set{"a": "b"}) || !got.Part.Has(nil) {
		t.Errorf("an empty selector: %+v, %v", got, err)
	}
	r.Spec.LabelSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"b", "c"}}}
	if got, err := cachedOf(r); err != nil || got.Part.Has(labels.Set{"a": "b"}) || !got.Part.Has(labels.Set{"a": "d"}) || !got.Part.Has(nil) {
		t.Errorf("an expression: %+v, %v", got, err)
	}
	r.Spec.LabelSelector.MatchExpressions[0].Operator = "Near"
	if got, err := cachedOf(r); err == nil {
		t.Errorf("a malformed selector: %+v", got)
	}
}
