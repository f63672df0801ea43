package fleet_test

import (
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/kcptest"
)

// TestBadInput expects a clear answer to what users get wrong. The physical cluster is a logical cluster of
// another server. It serves no Deployments.
func TestBadInput(t *testing.T) {
	far := &kcptest.Universe{Server: &kcp.Server{Listen: "127.0.0.1:0", NoSync: true}}
	near := &kcptest.Universe{Server: server(300 * time.Millisecond)}
	t.Cleanup(func() {
		for _, u := range []*kcptest.Universe{near, far} {
			if err := u.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	c := compute(t, near)
	c.Apply(`{apiVersion: scheduling.kcp.io/v1alpha1, kind: Location, metadata: {name: default}, spec: {description: all}}`)
	c.register(t, "east", kubeconfigOf(t, far))
	c.wait(t, "east", func(of *workload.SyncTarget) bool { return of.Status.LastSyncerHeartbeatTime != nil })
	shop := consumer(t, near, c)
	shop.Apply(placement("all", ""))
	shop.Apply(placement("late", "namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}"))
	t.Run("a Placement that never applies", func(t *testing.T) {
		says(t, shop, placements(), "", "late", "Shadowed", `Placement "all" is older and selects all namespaces`)
		shop.Apply(placement("all", "namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: other}}"))
		says(t, shop, placements(), "", "late", "status:True")
	})
	t.Run("a kind that no cluster serves", func(t *testing.T) {
		shop.Apply(deployment)
		says(t, shop, deployments(), "default", "web", "ReplicaFailure", "does not serve deployments.apps in version v1")
	})
	t.Run("a Placement that selects nothing", func(t *testing.T) {
		shop.Apply(placement("late", "locationSelectors: [{matchLabels: {no: such}}]"))
		says(t, shop, placements(), "", "late", "LocationNotFound")
		says(t, shop, deployments(), "default", "web", "does not serve") // it stays where it is
	})
	t.Run("a cluster that is too old", func(t *testing.T) {
		c.register(t, "old", oldCluster(t))
		c.wait(t, "old", func(of *workload.SyncTarget) bool {
			ready := of.Status.Conditions.Get(conditions.Ready)
			return ready != nil && ready.Reason == workload.TooOld && strings.Contains(ready.Message, "has version v1.27.3; 1.28 is the oldest that is supported")
		})
	})
	t.Run("a profile with a wrong path", func(t *testing.T) {
		spec := map[string]any{"group": "example.com", "version": "v1", "resource": "widgets", "class": "Replicated"}
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "workload.kcp.io/v1alpha1", "kind": "ResourceProfile", "metadata": map[string]any{"name": "widgets.example.com"}, "spec": spec}}
		_, err := c.Dynamic.Resource(workload.GroupVersion.WithResource("resourceprofiles")).Create(t.Context(), o, metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "class Replicated needs replicasPath") {
			t.Errorf("a profile without a path: %v", err)
		}
	})
}

// oldCluster returns a kubeconfig for a server that answers as one of an old version.
func oldCluster(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	for path, text := range map[string]string{
		"/version":           `{"major": "1", "minor": "27", "gitVersion": "v1.27.3"}`,
		"/api/v1/namespaces": `{"apiVersion": "v1", "kind": "NamespaceList", "metadata": {}, "items": []}`,
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, text) // the server has gone if it fails
		})
	}
	s := httptest.NewTLSServer(mux)
	t.Cleanup(s.Close)
	return kubeconfig(t, &rest.Config{Host: s.URL, BearerToken: "x", TLSClientConfig: rest.TLSClientConfig{CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})}})
}

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: nginx}]}
`

func placement(name, spec string) string {
	return fmt.Sprintf("apiVersion: scheduling.kcp.io/v1alpha1\nkind: Placement\nmetadata: {name: %s}\nspec: {%s}\n", name, spec)
}

func placements() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "scheduling.kcp.io", Version: "v1alpha1", Resource: "placements"}
}

func deployments() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
}

// says waits until the status of an object has some texts.
func says(t *testing.T, c *kcptest.Cluster, of schema.GroupVersionResource, namespace, name string, texts ...string) {
	t.Helper()
	eventually(t, func() error {
		o, err := c.Dynamic.Resource(of).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, text := range texts {
			if !strings.Contains(fmt.Sprint(o.Object["status"]), text) {
				return fmt.Errorf("%s %s does not say %q: %v", of.Resource, name, text, o.Object["status"])
			}
		}
		return nil
	})
}
