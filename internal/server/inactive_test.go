package server_test

import (
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

// annotate sets an annotation of the LogicalCluster; null removes it.
func (c *tenant) annotate(key, value string) error {
	patch := `{"metadata":{"annotations":{"` + key + `":` + value + `}}}`
	_, err := c.any.Resource(logicalClusters).Patch(c.t.Context(), "cluster", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

func (c *tenant) mustAnnotate(key, value string) {
	c.t.Helper()
	if err := c.annotate(key, value); err != nil {
		c.t.Fatal(err)
	}
}

func phaseIs(want string) func(*unstructured.Unstructured) bool {
	return func(o *unstructured.Unstructured) bool {
		return o != nil && text(o, "status", "phase") == want && o.GetLabels()["tenancy.kcp.io/phase"] == want
	}
}

// ended waits until a watch ends.
func ended(t *testing.T, what string, w watch.Interface) {
	t.Helper()
	defer w.Stop()
	for {
		select {
		case _, open := <-w.ResultChan():
			if !open {
				return
			}
		case <-t.Context().Done():
			t.Fatalf("the watch %s goes on", what)
		}
	}
}

const inactiveKey, legacyInactiveKey = "core.kcp.io/inactive", "internal.kcp.io/inactive"

// An offline cluster refuses all requests except those that activate it again.
func TestInactive(t *testing.T) {
	t.Parallel()
	for _, key := range []string{inactiveKey, legacyInactiveKey} {
		parent := newTenant(t)
		c := parent.workspace("away")
		owner, stranger := c.owner(), c.nobody()
		operator := at(t, c.server, c.name, &user.DefaultInfo{Name: "operator", Groups: []string{auth.AdminGroup, user.AllAuthenticated}})
		c.content("mine")
		watches := map[string]watch.Interface{
			"of its owner":    must(must(kubernetes.NewForConfig(c.withToken(owner.token)))(t).CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{}))(t),
			"of the system":   must(c.kube.CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{}))(t),
			"of workspaces":   must(c.any.Resource(workspaces).Watch(t.Context(), metav1.ListOptions{}))(t),
			"of all clusters": must(at(t, c.server, cluster.All, server.System()).kube.CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{}))(t),
		}
		elsewhere := must(parent.kube.CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{}))(t)
		if err := operator.annotate(key, `"true"`); err != nil {
			t.Fatal(err)
		}
		for what, w := range watches {
			ended(t, what, w)
		}
		parent.await(workspaces, "", "away", phaseIs("Inactive"))
		c.await(logicalClusters, "", "cluster", phaseIs("Inactive"))
		for _, r := range [][2]string{
			{"GET", "/api/v1/namespaces/default/configmaps/mine"}, {"GET", "/api/v1/configmaps?watch=true"}, {"POST", "/api/v1/namespaces"}, {"GET", "/version"}, {"GET", "/api"}, {"GET", "/apis"},
			{"GET", "/apis/core.kcp.io/v1alpha1"}, {"GET", "/apis/core.kcp.io/v1alpha1/logicalclustersx"}, {"DELETE", "/api/v1/namespaces/default/configmaps"}, {"GET", "/apis/tenancy.kcp.io/v1alpha1/workspaces"},
			{"POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews"}, {"GET", "/openapix"},
		} {
			for _, path := range []string{c.path(r[1]), "/clusters/" + string(parent.name) + ":away" + r[1]} {
				if got := owner.send(r[0], path, "{}", "Content-Type", "application/json"); got.code != http.StatusForbidden || !strings.Contains(got.body, "logical cluster is marked inactive") {
					t.Errorf("%s: %s %s: %d %s", key, r[0], path, got.code, got.body)
				}
			}
			if got := stranger.send(r[0], c.path(r[1]), "{}", "Content-Type", "application/json"); got.code != http.StatusForbidden || strings.Contains(got.body, "inactive") {
				t.Errorf("%s: a stranger: %s %s: %d %s", key, r[0], r[1], got.code, got.body)
			}
		}
		for name, code := range map[string]int{string(c.name): http.StatusOK, "nonesuch": http.StatusOK} {
			if got := c.anonymous().send("GET", "/clusters/"+name+"/healthz", ""); got.code != code {
				t.Errorf("the health at %s is answered %d %s", name, got.code, got.body)
			}
		}
		if _, err := c.kube.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("the system is answered %v", err)
		}
		for _, path := range []string{"/openapi/v2", "/openapi/v3", "/openapi/v3/api/v1", "/apis/core.kcp.io/v1alpha1/logicalclusters", "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster"} {
			if got := owner.send("GET", c.path(path), ""); !got.ok() {
				t.Errorf("%s: %s: %d %s", key, path, got.code, got.body)
			}
		}
		parent.content("goes-on")
		for e := range elsewhere.ResultChan() {
			if m, ok := e.Object.(*corev1.ConfigMap); !ok || m.Name == "goes-on" {
				break
			}
		}
		elsewhere.Stop()

		if err := operator.annotate(key, `null`); err != nil {
			t.Fatal(err)
		}
		// Requests succeed without delay.
		if _, err := c.kube.CoreV1().ConfigMaps("default").Get(t.Context(), "mine", metav1.GetOptions{}); err != nil {
			t.Errorf("when it is back: %v", err)
		}
		parent.await(workspaces, "", "away", phaseIs("Ready"))
	}
}

// Only operators can take clusters offline and activate them.
func TestWhoMakesInactive(t *testing.T) {
	t.Parallel()
	c := newTenant(t).workspace("mine")
	owner := c.allow("owner")
	for key, value := range map[string]string{inactiveKey: `"true"`, legacyInactiveKey: `"true"`} {
		if err := owner.annotate(key, value); !apierrors.IsForbidden(err) {
			t.Errorf("the owner sets %s: %v", key, err)
		}
	}
	operator := at(t, c.server, c.name, &user.DefaultInfo{Name: "operator", Groups: []string{auth.AdminGroup, user.AllAuthenticated}})
	if err := operator.annotate("internal.kcp.io/replicate", `"core.kcp.io"`); !apierrors.IsForbidden(err) {
		t.Errorf("the operator changes something else: %v", err)
	}
	for _, value := range []string{`"false"`, `""`, `"TRUE"`, `"true "`, `"1"`} {
		if err := operator.annotate(inactiveKey, value); err != nil {
			t.Error(err)
		}
		if _, err := c.kube.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Errorf("with %s: %v", value, err)
		}
	}
	if err := operator.annotate(inactiveKey, `"true"`); err != nil {
		t.Fatal(err)
	}
	c.await(logicalClusters, "", "cluster", phaseIs("Inactive"))
	if err := owner.annotate(inactiveKey, `null`); !apierrors.IsForbidden(err) {
		t.Errorf("the owner brings it back: %v", err)
	}
	root := at(t, c.server, cluster.Root, server.System())
	if err := root.annotate(inactiveKey, `"true"`); !apierrors.IsForbidden(err) {
		t.Errorf("root is taken offline: %v", err)
	}
}

// An offline workspace can be deleted, including objects that need API requests to delete.
func TestInactiveIsDeleted(t *testing.T) {
	t.Parallel()
	parent := newTenant(t)
	c := parent.workspace("away")
	c.namespace("ns")
	crd := endpointDefinition(v1, newConverter(t).client())
	crd.Spec.Conversion = nil
	c.define(crd)
	if _, err := c.any.Resource(endpoints(v1)).Namespace("ns").Create(t.Context(), endpoint(v1, "one", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.workspace("below")
	c.mustAnnotate(inactiveKey, `"true"`)
	parent.await(workspaces, "", "away", phaseIs("Inactive"))
	parent.deleteWorkspace("away")
	parent.await(workspaces, "", "away", gone)
}

// A cluster that one server takes offline is offline at all servers, and after a restart.
func inactiveAtSeveralServers(t *testing.T, e *equals) {
	c := e.workspace(e.all[0], "root", "away")
	w := must(e.kube(e.all[1], string(c), server.System()).CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{}))(t)
	patch := []byte(`{"metadata":{"annotations":{"core.kcp.io/inactive":"true"}}}`)
	_, err := e.dynamic(e.all[0], string(c)).Resource(logicalClusters).Patch(t.Context(), "cluster", types.MergePatchType, patch, metav1.PatchOptions{})
	e.ok(err)
	ended(t, "at the other server", w)
	third := must(e.start())(t)
	t.Cleanup(third.Close)
	for _, s := range append(e.all, third) {
		if err := configMapIn(e.kube(s, string(c), server.System()), "default", "x"); !apierrors.IsForbidden(err) {
			t.Errorf("a server answers %v", err)
		}
	}
	patch = []byte(`{"metadata":{"annotations":{"core.kcp.io/inactive":null}}}`)
	_, err = e.dynamic(third, string(c)).Resource(logicalClusters).Patch(t.Context(), "cluster", types.MergePatchType, patch, metav1.PatchOptions{})
	e.ok(err)
	e.ok(configMapIn(e.kube(e.all[1], "root:away", server.System()), "default", "y"))
}
