package server_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	corev1alpha1 "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

func TestADeletedWorkspaceEndsWithAllBelowIt(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	alice := c.allow("alice")
	a := alice.workspace("a")
	b := a.workspace("b")
	d := b.workspace("c")
	for _, w := range []*tenant{a, b, d} {
		w.content("m")
		w.namespace("n")
	}
	other := c.workspace("other")
	other.content("m")

	alice.deleteWorkspace("a")
	c.ended("a", a.name, b.name, d.name)
	if _, err := other.kube.CoreV1().ConfigMaps("default").Get(t.Context(), "m", metav1.GetOptions{}); err != nil {
		t.Error("the workspace beside it: ", err)
	}

	// Its users get the same error as for a cluster that never existed.
	_, err := at(t, c.server, a.name, as("alice")).kube.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("in a cluster that is gone: %v", err)
	}
	byPath := must(kubernetes.NewForConfig(c.server.InProcess(string(c.name)+":a", as("alice"))))(t)
	if _, err := byPath.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("at a path that is gone: %v", err)
	}
	// A new workspace of the same name has a new cluster.
	again := alice.workspace("a")
	if again.name == a.name {
		t.Errorf("%s came back", a.name)
	}
	if _, err := again.kube.CoreV1().ConfigMaps("default").Get(t.Context(), "m", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what the old one contained: %v", err)
	}
}

func TestClustersWithoutAWorkspaceAreDeletedDirectly(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	below := c.workspace("below")
	alice := below.allow("alice")
	if err := alice.any.Resource(logicalClusters).Delete(t.Context(), "cluster", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a tenant deletes its cluster: %v", err)
	}
	if err := alice.any.Resource(logicalClusters).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a tenant deletes all its clusters: %v", err)
	}
	for of, in := range map[string]*tenant{"delete workspace below in logical cluster " + string(c.name): below, "root workspace cannot be deleted": at(t, c.server, cluster.Root, server.System())} {
		err := in.any.Resource(logicalClusters).Delete(t.Context(), "cluster", metav1.DeleteOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), of) {
			t.Errorf("%v, not %q", err, of)
		}
		err = in.any.Resource(logicalClusters).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("as a collection: %v", err)
		}
	}
	// Even the system cannot remove the finalizer.
	patch := []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := c.any.Resource(logicalClusters).Patch(t.Context(), "cluster", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.any.Resource(logicalClusters).Delete(t.Context(), "cluster", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(logicalClusters, "", "cluster", gone)
	c.nothingLeft(c.name, below.name)
}

func TestRemove(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	w := c.workspace("w")
	w.content("m", hold)
	c.cannotRemove(w, "w", hold)
	w.letGo("m")
	for _, name := range []cluster.Name{w.name, c.name, c.name} {
		if err := c.server.Remove(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		c.nothingLeft(name)
	}
	if err := c.server.Remove(t.Context(), cluster.Root); err == nil {
		t.Error("the root workspace is gone")
	}
	// The name is free again.
	if err := c.server.MakeCluster(t.Context(), c.name); err != nil {
		t.Fatal(err)
	}
	c.content("m")
	if err := c.server.Remove(t.Context(), c.name); err != nil {
		t.Fatal(err)
	}
}

func TestTenantsCannotHaveOthersDeleted(t *testing.T) {
	t.Parallel()
	c, victim := newTenant(t), newTenant(t)
	alice := c.allow("alice")
	w := alice.workspace("w")
	in := at(t, c.server, w.name, as("alice"))

	// The finalizer stays, even if a user removes it.
	patch := []byte(`{"metadata":{"finalizers":null}}`)
	ws := must(alice.any.Resource(workspaces).Patch(t.Context(), "w", types.MergePatchType, patch, metav1.PatchOptions{}))(t)
	if f := ws.GetFinalizers(); len(f) != 1 || f[0] != corev1alpha1.LogicalClusterFinalizer {
		t.Errorf("finalizers are %v", f)
	}
	forge := []byte(fmt.Sprintf(`{"spec":{"owner":{"cluster":%q,"name":"x","apiVersion":"tenancy.kcp.io/v1alpha1","resource":"workspaces","uid":"u"}}}`, victim.name))
	if _, err := in.any.Resource(logicalClusters).Patch(t.Context(), "cluster", types.MergePatchType, forge, metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("owner forged: %v", err)
	}
	steal := []byte(fmt.Sprintf(`{"spec":{"cluster":%q}}`, victim.name))
	if _, err := alice.any.Resource(workspaces).Patch(t.Context(), "w", types.MergePatchType, steal, metav1.PatchOptions{}); err == nil {
		t.Error("cluster changed")
	}
	// A Workspace that names the cluster of another Workspace does not delete that cluster.
	ws = must(alice.any.Resource(workspaces).Get(t.Context(), "w", metav1.GetOptions{}))(t)
	rewrite(t, c, ws, victim.name)
	alice.deleteWorkspace("w")
	c.await(workspaces, "", "w", gone)
	victim.content("m")
}

// rewrite stores a Workspace that names another cluster. No server would write it.
func rewrite(t *testing.T, c *tenant, ws *unstructured.Unstructured, to cluster.Name) {
	t.Helper()
	kv := c.server.Store().RawClient()
	for _, key := range left(t, c.server.Store(), c.name) {
		if !strings.HasSuffix(key, "/"+string(c.name)+"/"+ws.GetName()) || !strings.Contains(key, "/workspaces/") {
			continue
		}
		resp := must(kv.Get(t.Context(), key))(t)
		old, stored := `"cluster":"`+string(clusterOf(ws))+`"`, string(resp.Kvs[0].Value)
		if !strings.Contains(stored, old) {
			t.Fatalf("%s is not in %s", old, stored)
		}
		must(kv.Put(t.Context(), key, strings.Replace(stored, old, `"cluster":"`+string(to)+`"`, 1)))(t)
		return
	}
	t.Fatal("the workspace is not stored")
}

func TestWorkspacesAreDeletedWhileTheyAreMade(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	above := c.workspace("above")
	var mu sync.Mutex
	made := map[cluster.Name]bool{}
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			for i := range 25 {
				name := fmt.Sprintf("w%d", (worker+i)%3)
				ws, err := above.any.Resource(workspaces).Create(t.Context(), workspace(name), metav1.CreateOptions{})
				if err == nil {
					mu.Lock()
					if made[clusterOf(ws)] {
						t.Errorf("cluster %s was made twice", clusterOf(ws))
					}
					made[clusterOf(ws)] = true
					mu.Unlock()
				} else if !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
					t.Errorf("create: %v", err)
				}
				if err := above.any.Resource(workspaces).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
					t.Errorf("delete: %v", err)
				}
				if worker == 0 && i == 20 {
					c.deleteWorkspace("above")
				}
			}
		})
	}
	all.Wait()
	c.await(workspaces, "", "above", gone)
	names := []cluster.Name{above.name}
	for name := range made {
		names = append(names, name)
	}
	c.nothingLeft(names...)
	everywhere := must(at(t, c.server, cluster.All, server.System()).any.Resource(logicalClusters).List(t.Context(), metav1.ListOptions{}))(t)
	for _, l := range everywhere.Items {
		if owner := text(&l, "spec", "owner", "cluster"); owner == string(above.name) || owner == string(c.name) {
			t.Errorf("left behind: %v", l.Object)
		}
	}
}

func TestTheDefaultNamespaceGoesWithItsCluster(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	w := c.workspace("w")
	err := w.kube.CoreV1().Namespaces().Delete(t.Context(), "default", metav1.DeleteOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "this namespace may not be deleted") {
		t.Errorf("deleted: %v", err)
	}
	w.content("m", hold)
	c.deleteWorkspace("w")
	c.says(workspaces, "w", hold)
	if err := w.kube.CoreV1().Namespaces().Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil {
		t.Errorf("not even now: %v", err)
	}
	w.letGo("m")
	c.ended("w", w.name)
}
