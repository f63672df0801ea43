package server_test

import (
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// TestTheViewHasAllOfAResource shows the status and the scale of exported resources in the view of the provider,
// and that its discovery and OpenAPI have them.
func TestTheViewHasAllOfAResource(t *testing.T) {
	t.Parallel()
	p, c := newTenant(t), newTenant(t)
	o := widgetSchema("v1", "color")
	versions, _, _ := unstructured.NestedSlice(o.Object, "spec", "versions")
	versions[0].(map[string]any)["subresources"] = decoded(`{status: {}, scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size}}`).Object
	versions[0].(map[string]any)["schema"] = decoded(`{type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}, status: {type: object, properties: {size: {type: integer}}}}}`).Object
	_ = unstructured.SetNestedSlice(o.Object, versions, "spec", "versions")
	p.create(apiSchemas, o)
	p.create(apiExports, widgetExport("widgets", "v1"))
	p.provides("pat")
	c.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	c.create(sharedWidgets, decoded(`{apiVersion: example.com/v1, kind: Widget, metadata: {name: w}, spec: {size: 1}}`))
	in := p.view("pat").widgets(c.name).Namespace("default")
	must(in.Patch(t.Context(), "w", types.MergePatchType, []byte(`{"status":{"size":4}}`), metav1.PatchOptions{}, "status"))(t)
	scale := must(in.Get(t.Context(), "w", metav1.GetOptions{}, "scale"))(t)
	if scale.GetAPIVersion() != "autoscaling/v1" || text(scale, "spec", "replicas") != "1" || text(scale, "status", "replicas") != "4" {
		t.Errorf("the scale is %v", scale.Object)
	}
	_ = unstructured.SetNestedField(scale.Object, int64(7), "spec", "replicas")
	must(in.Update(t.Context(), scale, metav1.UpdateOptions{}, "scale"))(t)
	if got := must(c.any.Resource(sharedWidgets).Namespace("default").Get(t.Context(), "w", metav1.GetOptions{}, "scale"))(t); text(got, "spec", "replicas") != "7" {
		t.Errorf("the consumer has %v", got.Object)
	}
	if _, err := p.view("mallory").widgets(c.name).Namespace("default").Get(t.Context(), "w", metav1.GetOptions{}, "scale"); !apierrors.IsForbidden(err) {
		t.Errorf("another user: %v", err)
	}
	for _, at := range []string{"*", string(c.name)} {
		for path, wants := range map[string][]string{
			"/apis/example.com/v1":            {`"name":"widgets"`, `"name":"widgets/status"`, `"name":"widgets/scale"`},
			"/openapi/v3/apis/example.com/v1": {`"com.example.v1.Widget"`, `namespaces/{namespace}/widgets/{name}/scale"`},
		} {
			status, body := p.view("pat").get(at + path)
			for _, want := range wants {
				if status != http.StatusOK || !strings.Contains(body, want) {
					t.Errorf("%s%s: %d without %s: %.300s", at, path, status, want, body)
				}
			}
		}
	}
}
