package kinds_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/workload/kinds"
	"github.com/unforked/kcp/kcptest"
)

var (
	universe = kcptest.Universe{Server: &kcp.Server{NoSync: true, EgressAllow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, Extensions: []kcp.Extension{{Offers: kinds.Offers(nil)}}}}
	without  = kcptest.Universe{Server: &kcp.Server{NoSync: true}} // the extension

	exports  = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apiexports"}
	bindings = schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apibindings"}
)

// everything are the resources of all offers.
func everything() []string {
	var all []string
	for _, o := range kinds.Offers(nil) {
		for _, r := range o.Resources {
			all = append(all, r.GroupResource.String())
		}
	}
	return all
}

// export returns an APIExport of native resources, such as "deployments.apps".
func export(name string, resources ...string) *unstructured.Unstructured {
	var list []any
	for _, r := range resources {
		gr := schema.ParseGroupResource(r)
		list = append(list, map[string]any{"group": gr.Group, "name": gr.Resource, "storage": map[string]any{"native": map[string]any{}}})
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apis.kcp.io/v1alpha2", "kind": "APIExport", "metadata": map[string]any{"name": name}, "spec": map[string]any{"resources": list},
	}}
}

// provider returns a cluster that exports resources as "kubernetes".
func provider(t testing.TB, resources ...string) *kcptest.Cluster {
	t.Helper()
	c := universe.New(t)
	if _, err := c.Dynamic.Resource(exports).Create(t.Context(), export("kubernetes", resources...), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return c
}

// binding returns an APIBinding to the export of a provider.
func binding(name string, to *kcptest.Cluster) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apis.kcp.io/v1alpha2", "kind": "APIBinding", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"reference": map[string]any{"export": map[string]any{"path": to.Name, "name": "kubernetes"}}},
	}}
}

// bind binds the export of a provider in a cluster.
func bind(t testing.TB, in, to *kcptest.Cluster) {
	t.Helper()
	b, err := in.Dynamic.Resource(bindings).Create(t.Context(), binding("kubernetes", to), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if phase, _, _ := unstructured.NestedString(b.Object, "status", "phase"); phase != "Bound" {
		t.Fatalf("the binding is %s", text(b.Object["status"]))
	}
}

// consumer returns a new cluster that binds the export of a provider.
func consumer(t testing.TB, to *kcptest.Cluster) *kcptest.Cluster {
	t.Helper()
	c := universe.New(t)
	bind(t, c, to)
	return c
}

// unbind deletes the binding and waits until it is gone.
func unbind(t *testing.T, in *kcptest.Cluster) {
	t.Helper()
	if err := in.Dynamic.Resource(bindings).Delete(t.Context(), "kubernetes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		_, err := in.Dynamic.Resource(bindings).Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("the binding is still there: %v", err)
		}
		return nil
	})
}

// typed returns a client of a cluster that sends and accepts protobuf.
func typed(t testing.TB, c *kcptest.Cluster) *kubernetes.Clientset {
	t.Helper()
	config := rest.CopyConfig(c.Config)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// get returns what a cluster answers to a GET.
func get(t *testing.T, c *kcptest.Cluster, path string, header ...string) (string, error) {
	t.Helper()
	r := typed(t, c).RESTClient().Get().RequestURI(path).SetHeader("Accept", "application/json")
	for _, h := range header {
		name, value, _ := strings.Cut(h, ": ")
		r.SetHeader(name, value)
	}
	b, err := r.DoRaw(t.Context())
	return string(b), err
}

// eventually waits until check returns nil.
func eventually(t testing.TB, check func() error) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), kcptest.DefaultTimeout)
	defer stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func text(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

// pemOf returns a certificate as PEM.
func pemOf(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
