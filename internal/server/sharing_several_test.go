package server_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/storage/etcdtest"
)

// TestSharingAtSeveralServers shows that what one server has acknowledged holds at another for
// requests that begin later: what is bound is served, what is rejected is refused. Open watches
// end.
func TestSharingAtSeveralServers(t *testing.T) {
	t.Parallel()
	e := startEquals(t, 2, etcdtest.Options{})
	servers := []*running{{Server: e.all[0]}, {Server: e.all[1]}}
	for i := range size(2, 40) {
		a, b := servers[i%2], servers[1-i%2]
		names := [2]cluster.Name{cluster.NewName(), cluster.NewName()}
		for _, c := range names {
			e.ok(a.MakeCluster(t.Context(), c))
		}
		p, consumer := at(t, a, names[0], server.System()), at(t, a, names[1], server.System())
		elsewhere, view := at(t, b, names[1], server.System()), &viewer{t, b, "/services/apiexport/" + string(names[0]) + "/widgets/clusters/", server.System()}
		widgets := elsewhere.any.Resource(sharedWidgets).Namespace("default")

		p.create(apiSchemas, widgetSchema("v1", "color"))
		export := widgetExport("widgets", "v1")
		_ = unstructured.SetNestedField(export.Object, decoded("%s", claimSecrets).Object["claims"], "spec", "permissionClaims")
		at(t, b, names[0], server.System()).create(apiExports, export)
		if bound := consumer.create(apiBindings, answering(names[0], acceptSecrets)); text(bound, "status", "phase") != "Bound" {
			t.Fatalf("an export that another server has just stored is not bound: %v", bound.Object["status"])
		}
		elsewhere.create(sharedWidgets, newWidget("w"))
		if all := must(view.widgets("*").List(t.Context(), metav1.ListOptions{}))(t); len(all.Items) != 1 {
			t.Errorf("the view has %d widgets", len(all.Items))
		}
		consumer.secret("s", nil)
		secrets := view.kube(cluster.All).CoreV1().Secrets("")
		list := must(secrets.List(t.Context(), metav1.ListOptions{}))(t)
		w := must(secrets.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion}))(t)
		if len(list.Items) != 1 {
			t.Errorf("the provider reads %d secrets", len(list.Items))
		}

		p.create(apiSchemas, widgetSchema("v2", "shape"))
		p.merge(apiExports, "", "widgets", `{"spec":{"resources":[{"group":"example.com","name":"widgets","schema":"v2.widgets.example.com","storage":{"crd":{}}}]}}`)
		consumer.until(apiBindings, "widgets", "Ready True", "v2.widgets.example.com")
		changed := must(widgets.Patch(t.Context(), "w", types.MergePatchType, []byte(`{"spec":{"color":"red","shape":"round"}}`), metav1.PatchOptions{}))(t)
		if got := fmt.Sprint(changed.Object["spec"]); got != "map[shape:round size:1]" {
			t.Errorf("by the old schema: %s", got)
		}

		consumer.answer(rejectSecrets)
		if _, err := view.kube(names[1]).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("after the rejection: %v", err)
		}
		if now := must(secrets.List(t.Context(), metav1.ListOptions{}))(t); len(now.Items) > 0 {
			t.Errorf("after the rejection the provider reads %d secrets", len(now.Items))
		}
		if e := next(t, w); e.Type != watch.Deleted || e.Object.(*corev1.Secret).Name != "s" {
			t.Errorf("after the rejection the watch has %v", e)
		}
		w.Stop()

		inside := must(view.widgets(names[1]).Watch(t.Context(), metav1.ListOptions{}))(t)
		consumer.without(apiBindings, "widgets")
		consumer.await(apiBindings, "", "widgets", gone)
		if _, err := widgets.Create(t.Context(), newWidget("late"), metav1.CreateOptions{}); !apierrors.IsNotFound(err) && !apierrors.IsMethodNotSupported(err) && !apierrors.IsForbidden(err) { // which of these depends on how much the second server knows
			t.Errorf("a creation after the end of the binding: %v", err)
		}
		if _, err := view.widgets(names[1]).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("the view after the end of the binding: %v", err)
		}
		for open := true; open; {
			_, open = <-inside.ResultChan()
		}
		for _, key := range left(t, b.Store(), names[1]) {
			if strings.Contains(key, "/widgets/") {
				t.Errorf("left: %s", key)
			}
		}
	}
}
