package server_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/store"
)

// A server handles changes that its predecessor did not finish, and changes that happened
// while no server ran.
func TestNamespacesOfAStoppedServer(t *testing.T) {
	t.Parallel()
	dir, name := t.TempDir(), cluster.NewName()
	c, stop := restartable(t, dir, name, widgetDefinition())
	c.namespace("n")
	c.await(core("serviceaccounts"), "n", "default", there)
	held := widget("held")
	held.SetNamespace("n")
	held.SetFinalizers([]string{holdFinalizer})
	if _, err := c.any.Resource(widgets).Namespace("n").Create(t.Context(), held, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.kube.CoreV1().Namespaces().Delete(t.Context(), "n", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(core("namespaces"), "", "n", func(o *unstructured.Unstructured) bool {
		return strings.Contains(text(o, "status", "conditions"), "widgets.example.com has 1 resource instances")
	})
	secrets := c.kube.CoreV1().Secrets("default")
	if _, err := secrets.Create(t.Context(), tokenSecret("token", "default"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(core("secrets"), "default", "token", func(o *unstructured.Unstructured) bool { return text(o, "data", "token") != "<nil>" })
	stop()

	st := must(store.Open(t.Context(), store.Options{Dir: dir, Version: "1.36", NoSync: true}))(t)
	_, err := st.RawClient().Delete(t.Context(), "/registry/n/core/serviceaccounts/-/"+string(name)+"/default/default")
	st.Close()
	if err != nil {
		t.Fatal(err)
	}

	c, _ = restartable(t, dir, name, widgetDefinition())
	// The new account has a new UID, so the token of the old one is invalid.
	c.await(core("serviceaccounts"), "default", "default", there)
	c.await(core("secrets"), "default", "token", gone)
	if _, err := c.any.Resource(widgets).Namespace("n").Patch(t.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(core("namespaces"), "", "n", gone)
}
