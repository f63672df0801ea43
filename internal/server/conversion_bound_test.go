package server_test

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
)

// testBoundConversion shows the conversion webhook of an APIResourceSchema: in gets, lists, watches, writes and
// applies of a consumer, and in the view of the provider. If it fails for one consumer, others can read.
func testBoundConversion(t *testing.T, all *conversions) {
	p, c, other := all.server.tenant(t), all.server.tenant(t), all.server.tenant(t)
	schema := must(apisv1alpha1.FromCustomResourceDefinition(endpointDefinition(v1, all.hook.client()), "v1"))(t)
	asObject := func(s *apisv1alpha1.APIResourceSchema) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: must(runtime.DefaultUnstructuredConverter.ToUnstructured(s))(t)}
		o.SetGroupVersionKind(apisv1alpha1.GroupVersion.WithKind("APIResourceSchema"))
		return o
	}
	p.create(apiSchemas, asObject(schema))
	p.create(apiExports, decoded(`{apiVersion: apis.kcp.io/v1alpha2, kind: APIExport, metadata: {name: widgets}, spec: {resources: [{name: endpoints, group: convert.example.com, schema: v1.endpoints.convert.example.com}]}}`))
	p.provides("pat")
	for _, of := range []*tenant{c, other} {
		of.create(apiBindings, bindingTo("endpoints", p.name, "widgets"))
	}
	in := must(dynamic.NewForConfig(p.view("pat").config("*")))(t).Resource(endpoints(v2))
	w := must(in.Watch(t.Context(), metav1.ListOptions{}))(t)
	defer w.Stop()
	name := c.unique("a")
	c.endpoint(v1, name, object{"hostPort": "h:1"})
	wantSpec(t, must(c.endpoints(v2).Get(t.Context(), name, metav1.GetOptions{}))(t), v2, object{"host": "h", "port": "1"})
	if e := next(t, w); e.Type != watch.Added {
		t.Errorf("the view has %v", e)
	} else {
		wantSpec(t, e.Object.(*unstructured.Unstructured), v2, object{"host": "h", "port": "1"})
	}
	must(c.endpoints(v2).Apply(t.Context(), name, endpoint(v2, name, object{"port": "2", "note": "n"}), metav1.ApplyOptions{FieldManager: "m", Force: true}))(t)
	wantSpec(t, must(c.endpoints(v1).Get(t.Context(), name, metav1.GetOptions{}))(t), v1, object{"hostPort": "h:2", "note": "n"})
	other.endpoint(v2, "b", object{"host": "o", "port": "3"})
	list := must(in.List(t.Context(), metav1.ListOptions{}))(t)
	if len(list.Items) != 2 {
		t.Errorf("the view lists %v", list.Items)
	}
	for i := range list.Items {
		if o := &list.Items[i]; o.GetName() == "b" {
			wantSpec(t, o, v2, object{"host": "o", "port": "3"})
		}
	}

	// A check of another schema says what it leaves out.
	stricter := schema.DeepCopy()
	stricter.Name = "v2.endpoints.convert.example.com"
	stricter.Spec.Versions[0].Schema.Raw = []byte(strings.Replace(string(stricter.Spec.Versions[0].Schema.Raw), `"hostPort":{"type":"string"}`, `"hostPort":{"type":"string","maxLength":2}`, 1))
	breaks, sum := (person{t, p.server, as("pat").(*user.DefaultInfo)}).checked(p, newCheck(asObject(stricter)))
	if len(breaks) != 2 || !strings.Contains(strings.Join(breaks, " "), "Invalid spec.hostPort in v1") || len(sum.Notes) != 1 || !strings.Contains(sum.Notes[0], "checked only in the versions that they are stored in") {
		t.Errorf("the check has %q and notes %q", breaks, sum.Notes)
	}

	all.hook.moods.Store(name, each(func(o *unstructured.Unstructured) { o.SetUID("forged") }))
	if _, err := c.endpoints(v2).Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "must have the same UID") {
		t.Errorf("a webhook that lies: %v", err)
	}
	wantSpec(t, must(other.endpoints(v1).Get(t.Context(), "b", metav1.GetOptions{}))(t), v1, object{"hostPort": "o:3"})
	wantSpec(t, must(other.endpoints(v2).Get(t.Context(), "b", metav1.GetOptions{}))(t), v2, object{"host": "o", "port": "3"})
}
