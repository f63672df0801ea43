package server_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	corev1alpha1 "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/storage/store"
)

var (
	workspaces      = schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspaces"}
	workspaceTypes  = schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspacetypes"}
	logicalClusters = schema.GroupVersionResource{Group: "core.kcp.io", Version: "v1alpha1", Resource: "logicalclusters"}
)

const hold = "example.com/hold"

// at returns an existing cluster, with clients that act as u.
func at(t *testing.T, s *running, c cluster.Name, u user.Info) *tenant {
	t.Helper()
	config := s.InProcess(string(c), u)
	return &tenant{t: t, server: s, name: c, kube: must(kubernetes.NewForConfig(config))(t), any: must(dynamic.NewForConfig(config))(t)}
}

func as(name string) user.Info {
	return &user.DefaultInfo{Name: name, Groups: []string{user.AllAuthenticated}}
}

func workspace(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "metadata": map[string]any{"name": name},
	}}
}

// workspace creates a workspace and returns its cluster.
func (c *tenant) workspace(name string) *tenant {
	c.t.Helper()
	ws := must(c.any.Resource(workspaces).Create(c.t.Context(), workspace(name), metav1.CreateOptions{}))(c.t)
	return at(c.t, c.server, clusterOf(ws), server.System())
}

func clusterOf(ws *unstructured.Unstructured) cluster.Name {
	return cluster.Name(text(ws, "spec", "cluster"))
}

func (c *tenant) deleteWorkspace(name string) {
	c.t.Helper()
	if err := c.any.Resource(workspaces).Delete(c.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// allow makes a user an administrator of the cluster, and returns the cluster as seen by that
// user.
func (c *tenant) allow(name string) *tenant {
	c.t.Helper()
	_, err := c.kube.RbacV1().ClusterRoleBindings().Create(c.t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return at(c.t, c.server, c.name, as(name))
}

func (c *tenant) content(name string, finalizers ...string) {
	c.t.Helper()
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: finalizers}}
	if _, err := c.kube.CoreV1().ConfigMaps("default").Create(c.t.Context(), m, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// letGo removes the finalizers of a config map.
func (c *tenant) letGo(name string) {
	c.t.Helper()
	patch := []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := c.kube.CoreV1().ConfigMaps("default").Patch(c.t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// says waits until the condition WorkspaceContentDeleted is False with a message that
// contains all words.
func (c *tenant) says(r schema.GroupVersionResource, name string, words ...string) *unstructured.Unstructured {
	c.t.Helper()
	return c.await(r, "", name, func(o *unstructured.Unstructured) bool {
		if o == nil {
			return false
		}
		all, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		for _, one := range all {
			condition, _ := one.(map[string]any)
			said := fmt.Sprint(condition["message"])
			if condition["type"] == "WorkspaceContentDeleted" && condition["status"] == "False" && containsAll(said, words) {
				return true
			}
		}
		return false
	})
}

func containsAll(s string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(s, w) {
			return false
		}
	}
	return true
}

// left returns the keys in etcd that contain one of the clusters. The usage of an export is not
// among them: it belongs to the provider and stays for a while after a consumer is gone.
func left(t *testing.T, s *store.Store, clusters ...cluster.Name) []string {
	t.Helper()
	resp := must(s.RawClient().Get(t.Context(), "", clientv3.WithFromKey(), clientv3.WithKeysOnly()))(t)
	usage := "/registry/s/core/usage/-/" + string(cluster.Admin) + "/"
	var found []string
	for _, kv := range resp.Kvs {
		for _, c := range clusters {
			if strings.Contains(string(kv.Key), "/"+string(c)+"/") && !strings.HasPrefix(string(kv.Key), usage) {
				found = append(found, string(kv.Key))
			}
		}
	}
	return found
}

// nothingLeft checks that clusters are deleted from etcd and from memory.
func (c *tenant) nothingLeft(clusters ...cluster.Name) {
	c.t.Helper()
	s := c.server.Store()
	if keys := left(c.t, s, clusters...); len(keys) > 0 {
		c.t.Errorf("left in etcd: %v", keys)
	}
	for _, name := range clusters {
		if state, err := s.State(c.t.Context(), name); state != store.Gone || err != nil {
			c.t.Errorf("the fence of %s is %q (%v)", name, state, err)
		}
	}
	s.Feed().Fresh(c.t.Context())
	for _, name := range clusters {
		if of := s.Feed().Ledger().Of(name); len(of) > 0 {
			c.t.Errorf("the ledger knows of %v in %s", of, name)
		}
	}
}

// ended waits until a Workspace is gone. Then its cluster and those below it must be gone, too.
func (c *tenant) ended(name string, clusters ...cluster.Name) {
	c.t.Helper()
	c.await(workspaces, "", name, gone)
	c.nothingLeft(clusters...)
}

// cannotRemove checks that Remove of the cluster of a Workspace waits while the Workspace reports
// why. When the context of Remove ends, its error names the finalizer hold.
func (c *tenant) cannotRemove(of *tenant, name, why string) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	defer cancel()
	failed := make(chan error, 1)
	go func() { failed <- c.server.Remove(ctx, of.name) }()
	c.says(workspaces, name, why)
	cancel()
	if err := <-failed; err == nil || !strings.Contains(err.Error(), hold) {
		c.t.Errorf("Remove failed with %v, which does not name %s", err, hold)
	}
}

// isDeleting checks that the phase of an object is Deleting, in its status and in its label.
func isDeleting(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	if phase := text(o, "status", "phase"); phase != "Deleting" || o.GetLabels()[corev1alpha1.PhaseLabel] != phase {
		t.Errorf("%s %s is %s, labels %v", o.GetKind(), o.GetName(), phase, o.GetLabels())
	}
}
