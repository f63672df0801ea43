package server_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/unforked/kcp/internal/storage/keys"
)

// freelyNamed are names that PathSegmentName allows.
var freelyNamed = []string{"Upper", "system:a", "a b", "a?b=c", "a#b", "..a", "a..", "...", "*", "~", "-", "a,b", "a=b", "ä", "日本", `a"b`, `a\\b`, "a+b", "a;b", "a&b", "clusters", "status", strings.Repeat("x", 253)}

// namedWidgets is an APIResourceSchema of widgets whose names are segments of a path.
func namedWidgets(prefix, scope string) *unstructured.Unstructured {
	o := widgetSchema(prefix, "color")
	_ = unstructured.SetNestedField(o.Object, "PathSegmentName", "spec", "nameValidation")
	_ = unstructured.SetNestedField(o.Object, scope, "spec", "scope")
	return o
}

// TestNamesThatAreSegments shows all requests for objects whose names are segments of a path, in the cluster of a
// consumer and in the view of the provider, and that no name leads to another key.
func TestNamesThatAreSegments(t *testing.T) {
	t.Parallel()
	for _, scope := range []string{"Namespaced", "Cluster"} {
		t.Run(scope, func(t *testing.T) {
			t.Parallel()
			p, c, other := newTenant(t), newTenant(t), newTenant(t)
			p.create(apiSchemas, namedWidgets("v1", scope))
			p.create(apiExports, widgetExport("widgets", "v1"))
			p.provides("pat")
			owner := c.owner()
			over := map[*tenant]dynamic.Interface{c: must(dynamic.NewForConfig(c.withToken(owner.token)))(t), other: other.any}
			in := func(of *tenant) dynamic.ResourceInterface {
				if scope == "Cluster" {
					return over[of].Resource(sharedWidgets)
				}
				return over[of].Resource(sharedWidgets).Namespace("n")
			}
			for _, of := range []*tenant{c, other} {
				of.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
				of.namespace("n")
			}
			w := must(in(c).Watch(t.Context(), metav1.ListOptions{}))(t)
			defer w.Stop()
			for _, name := range freelyNamed {
				checkName(t, in(c), name)
				if e := next(t, w); e.Type != watch.Added || e.Object.(*unstructured.Unstructured).GetName() != name {
					t.Fatalf("%q: the watch has %v", name, e)
				}
				for _, kind := range []watch.EventType{watch.Modified, watch.Modified, watch.Modified} {
					if e := next(t, w); e.Type != kind || e.Object.(*unstructured.Unstructured).GetName() != name {
						t.Fatalf("%q: the watch has %v", name, e)
					}
				}
			}
			made := newWidget("pat")
			made.SetName("From: Pat")
			if scope == "Namespaced" {
				made.SetNamespace("n")
				must(p.view("pat").widgets(c.name).Namespace("n").Create(t.Context(), made, metav1.CreateOptions{}))(t)
			} else {
				must(p.view("pat").widgets(c.name).Create(t.Context(), made, metav1.CreateOptions{}))(t)
			}
			seen := must(p.view("pat").widgets("*").List(t.Context(), metav1.ListOptions{}))(t)
			for _, list := range []*unstructured.UnstructuredList{must(in(c).List(t.Context(), metav1.ListOptions{Limit: 500}))(t), seen} {
				var names []string
				for _, o := range list.Items {
					names = append(names, o.GetName())
				}
				slices.Sort(names)
				if want := slices.Sorted(slices.Values(append(slices.Clone(freelyNamed), "From: Pat"))); !slices.Equal(names, want) {
					t.Errorf("listed are %q, not %q", names, want)
				}
			}
			if list := must(in(other).List(t.Context(), metav1.ListOptions{}))(t); len(list.Items) > 0 {
				t.Errorf("another cluster has %v", list.Items)
			}
			refusesNames(t, owner, c.path(""), in(c))
			if err := in(c).Delete(t.Context(), "a b", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
			if scope == "Namespaced" {
				if err := c.kube.CoreV1().Namespaces().Delete(t.Context(), "n", metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
				c.await(core("namespaces"), "", "n", gone)
			} else if err := in(c).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
				t.Fatal(err)
			}
			if list := must(p.view("pat").widgets("*").List(t.Context(), metav1.ListOptions{}))(t); len(list.Items) > 0 {
				t.Errorf("left are %v", list.Items)
			}
			must(in(other).Create(t.Context(), newWidget("x"), metav1.CreateOptions{}))(t)
			if err := other.any.Resource(apiBindings).Delete(t.Context(), "widgets", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			other.await(apiBindings, "", "widgets", gone)
		})
	}
}

// checkName creates an object, and changes it by update, patch and apply.
func checkName(t *testing.T, in dynamic.ResourceInterface, name string) {
	t.Helper()
	o := newWidget("x")
	o.SetName(name)
	o = must(in.Create(t.Context(), o, metav1.CreateOptions{}))(t)
	if got := must(in.Get(t.Context(), name, metav1.GetOptions{}))(t); got.GetName() != name || got.GetUID() != o.GetUID() {
		t.Errorf("%q is %q", name, got.GetName())
	}
	if list := must(in.List(t.Context(), metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}))(t); len(list.Items) != 1 || list.Items[0].GetName() != name {
		t.Errorf("by the field %q: %v", name, list.Items)
	}
	_ = unstructured.SetNestedField(o.Object, "red", "spec", "color")
	must(in.Update(t.Context(), o, metav1.UpdateOptions{}))(t)
	must(in.Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"size":2}}`), metav1.PatchOptions{}))(t)
	applied := newWidget("x")
	applied.SetName(name)
	_ = unstructured.SetNestedField(applied.Object, int64(3), "spec", "size")
	must(in.Apply(t.Context(), name, applied, metav1.ApplyOptions{FieldManager: "m", Force: true}))(t)
	if _, err := in.Create(t.Context(), applied, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("%q twice: %v", name, err)
	}
}

// refusesNames shows the names that are refused: they would lead to another key, or cannot be written in a URL or
// a log.
func refusesNames(t *testing.T, owner visitor, cluster string, in dynamic.ResourceInterface) {
	t.Helper()
	for _, name := range []string{".", "..", "a/b", "/", "../n", "%2f", "..%2Fn", "%", "a\x00b", "a\nb", "\u200b", "\u202e", "\ufffd", " a", "a ", strings.Repeat("x", 254)} {
		o := newWidget("x")
		o.SetName(name)
		if _, err := in.Create(t.Context(), o, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("%q: %v", name, err)
		}
	}
	o := newWidget("x")
	o.SetName("")
	o.SetGenerateName("a/")
	if _, err := in.Create(t.Context(), o, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a generated name: %v", err)
	}
	for _, path := range []string{"n/widgets/%2e%2e/%2e%2e", "n/widgets/%2e", "n/widgets/..%2f..%2fother", "n/widgets/a%2fb", "n/widgets/x%00"} {
		if got := owner.send(http.MethodGet, cluster+"/apis/example.com/v1/namespaces/"+path, ""); got.code < 400 {
			t.Errorf("%s: %d %s", path, got.code, got.body)
		}
	}
	for _, name := range freelyNamed {
		if err := keys.CustomResource(sharedWidgets.GroupResource(), "i").Key("c", "n", name).Validate(); err != nil {
			t.Errorf("the key of %q: %v", name, err)
		}
	}
}
