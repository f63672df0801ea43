package server_test

import (
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
)

// TestAProviderReachesNothingElse shows that the view of an export gives no access beyond the
// exported resources in the clusters that bind it, and ends with the binding.
func TestAProviderReachesNothingElse(t *testing.T) {
	t.Parallel()
	p, consumer, stranger := exporter(t), newTenant(t), newTenant(t)
	p.provides("alice")
	consumer.create(apiBindings, bindingTo("widgets", p.name, "widgets"))
	consumer.create(sharedWidgets, newWidget("w"))
	pat, alice := p.view("alice"), p.alice()
	for _, path := range []string{
		string(consumer.name) + "/api/v1/secrets", string(consumer.name) + "/api/v1/namespaces/default/configmaps",
		string(consumer.name) + "/apis/core.kcp.io/v1alpha1/logicalclusters", string(consumer.name) + "/apis/apis.kcp.io/v1alpha2/apiexports",
		string(consumer.name) + "/apis/rbac.authorization.k8s.io/v1/clusterroles", string(consumer.name) + "/metrics",
		"*/api/v1/secrets", "*/apis/apis.kcp.io/v1alpha2/apiexports", "root/apis/example.com/v1/widgets", "system:bound-crds/apis/example.com/v1/widgets",
		string(stranger.name) + "/apis/example.com/v1/widgets", "root:x/apis/example.com/v1/widgets",
		string(consumer.name) + "/clusters/" + string(stranger.name) + "/apis/example.com/v1/widgets",
	} {
		if got := alice.send(http.MethodGet, pat.url+path, ""); got.code < 400 || got.code >= 500 {
			t.Errorf("%s: %d %s", path, got.code, got.body)
		}
	}
	for _, resource := range []string{"/apis/example.com/v1/widgets", "/apis/apis.kcp.io/v1alpha2/apibindings"} {
		if got := alice.send(http.MethodGet, pat.url+"root:x"+resource, ""); got.code != http.StatusForbidden || !strings.Contains(got.body, "by their names, not by paths") {
			t.Errorf("a path gets %d %s", got.code, got.body)
		}
	}
	for _, name := range []string{"mallory", "nobody"} {
		if _, err := p.view(name).widgets("*").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("%s lists: %v", name, err)
		}
	}
	w := must(pat.widgets(consumer.name).Watch(t.Context(), metav1.ListOptions{}))(t)
	defer w.Stop()
	if err := consumer.any.Resource(apiBindings).Delete(t.Context(), "widgets", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	consumer.await(apiBindings, "", "widgets", gone)
	for open := true; open; {
		_, open = <-w.ResultChan()
	}
	if _, err := pat.widgets(consumer.name).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("after the binding has gone: %v", err)
	}
}

// TestAConsumerCannotForge shows that the status and the system's metadata of shared APIs cannot
// be written, and that binding needs permission.
func TestAConsumerCannotForge(t *testing.T) {
	t.Parallel()
	p, secret := exporter(t), exporter(t)
	p.provides("pat")
	consumer := newTenant(t)
	owner := must(dynamic.NewForConfig(consumer.withToken(consumer.owner().token)))(t)
	own := owner.Resource(apiBindings)
	_, err := own.Create(t.Context(), bindingTo("secret", secret.name, "widgets"), metav1.CreateOptions{})
	_, missing := own.Create(t.Context(), bindingTo("missing", secret.name, "nothing"), metav1.CreateOptions{})
	_, nowhere := own.Create(t.Context(), bindingTo("nowhere", "root:no:where", "widgets"), metav1.CreateOptions{})
	for what, err := range map[string]error{"secret": err, "missing": missing, "nowhere": nowhere} {
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "unable to create APIBinding: no permission to bind to export ") {
			t.Errorf("%s: %v", what, err)
		}
	}
	mine := must(own.Create(t.Context(), bindingTo("widgets", p.name, "widgets"), metav1.CreateOptions{}))(t)
	forged := mine.DeepCopy()
	bound, _, _ := unstructured.NestedSlice(forged.Object, "status", "boundResources")
	bound[0].(map[string]any)["schema"].(map[string]any)["identityHash"] = text(must(secret.any.Resource(apiExports).Get(t.Context(), "widgets", metav1.GetOptions{}))(t), "status", "identityHash")
	_ = unstructured.SetNestedSlice(forged.Object, bound, "status", "boundResources")
	if _, err := own.UpdateStatus(t.Context(), forged, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the status was written: %v", err)
	}
	moved := must(own.Get(t.Context(), "widgets", metav1.GetOptions{}))(t)
	_ = unstructured.SetNestedField(moved.Object, string(secret.name), "spec", "reference", "export", "path")
	if _, err := own.Update(t.Context(), moved, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("the reference was changed: %v", err)
	}
}
