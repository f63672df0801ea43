package server_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	"github.com/unforked/kcp/internal/store"
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

// left returns the keys in etcd that contain one of the clusters.
func left(t *testing.T, s *store.Store, clusters ...cluster.Name) []string {
	t.Helper()
	resp := must(s.RawClient().Get(t.Context(), "", clientv3.WithFromKey(), clientv3.WithKeysOnly()))(t)
	var found []string
	for _, kv := range resp.Kvs {
		for _, c := range clusters {
			if strings.Contains(string(kv.Key), "/"+string(c)+"/") {
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
	c.await(workspaces, "", "a", gone)
	c.nothingLeft(a.name, b.name, d.name)
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

func TestFinalizersBlockTheDeletionOfAWorkspace(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.allow("alice")
	alice := at(t, c.server, c.name, as("alice"))
	a := alice.workspace("a")
	b := at(t, c.server, a.name, as("alice")).workspace("b")
	b.content("first", hold)
	b.content("second", hold)
	b.content("third")
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "held"}, Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{hold}}}
	if _, err := b.kube.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	alice.deleteWorkspace("a")

	// The conditions of the cluster, its Workspace and the parent name the obstacles.
	b.says(logicalClusters, "cluster", "configmaps default/first", hold, "2 more")
	a.says(workspaces, "b", "configmaps default/first", hold)
	ws := c.says(workspaces, "a", "workspace b", "configmaps default/first", hold)
	if phase := text(ws, "status", "phase"); phase != "Deleting" || ws.GetLabels()[corev1alpha1.PhaseLabel] != phase {
		t.Errorf("phase %s, labels %v", phase, ws.GetLabels())
	}
	b.await(core("configmaps"), "default", "third", gone)

	// Creates are refused. Updates of objects with finalizers succeed.
	in := at(t, c.server, b.name, as("alice"))
	for _, who := range []*tenant{in, b} {
		_, err := who.kube.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late"}}, metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "being deleted") {
			t.Errorf("created in a cluster that is being deleted: %v", err)
		}
		_, err = who.any.Resource(workspaces).Create(t.Context(), workspace("late"), metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "being deleted") {
			t.Errorf("workspace made in a cluster that is being deleted: %v", err)
		}
	}
	_, err := alice.any.Resource(workspaces).Create(t.Context(), workspace("a"), metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		t.Errorf("made again before it was gone: %v", err)
	}
	alice.deleteWorkspace("a") // a second deletion has no effect
	in.letGo("first")
	c.says(workspaces, "a", "configmaps default/second", "1 more")
	in.letGo("second")
	c.says(workspaces, "a", "namespaces held", hold)
	must(in.kube.CoreV1().Namespaces().Finalize(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "held"}}, metav1.UpdateOptions{}))(t)
	c.await(workspaces, "", "a", gone)
	c.nothingLeft(a.name, b.name)
}

func TestABlockedTenantHoldsUpNobody(t *testing.T) {
	t.Parallel()
	stuck, c := newTenant(t), newTenant(t)
	var names []cluster.Name
	for i := range 20 {
		w := stuck.workspace(fmt.Sprintf("w%d", i))
		w.content("m", hold)
		names = append(names, w.name)
		stuck.deleteWorkspace(fmt.Sprintf("w%d", i))
	}
	for i := range 20 {
		stuck.says(workspaces, fmt.Sprintf("w%d", i), hold)
	}
	w := c.workspace("w")
	c.deleteWorkspace("w")
	c.await(workspaces, "", "w", gone)
	c.nothingLeft(w.name)
	for i, name := range names {
		at(t, c.server, name, server.System()).letGo("m")
		stuck.await(workspaces, "", fmt.Sprintf("w%d", i), gone)
	}
	stuck.nothingLeft(names...)
}

func TestFinalizersOfGarbageCollectionDoNotBlock(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	w := c.workspace("w")
	w.content("m", metav1.FinalizerDeleteDependents)
	w.workspace("below")
	foreground := metav1.DeletePropagationForeground
	if err := w.any.Resource(workspaces).Delete(t.Context(), "below", metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}
	c.deleteWorkspace("w")
	c.await(workspaces, "", "w", gone)
	c.nothingLeft(w.name)
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
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { failed <- c.server.Remove(ctx, w.name) }()
	c.says(workspaces, "w", hold)
	cancel()
	if err := <-failed; err == nil || !strings.Contains(err.Error(), hold) {
		t.Errorf("given up with %v, which does not say why", err)
	}
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
	c.await(workspaces, "", "w", gone)
	c.nothingLeft(w.name)
}

func TestWhatIsNotServedIsDeletedToo(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	w := c.workspace("w")
	raw := c.server.Store().RawClient()
	put := func(key, value string) string {
		key = fmt.Sprintf("/registry/%s/%s/default/x", key, w.name)
		must(raw.Put(t.Context(), key, value))(t)
		return key
	}
	put("c/example.com/things/some-identity", `{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"namespace":"default","name":"x"}}`)
	put("s/core/names/-", "x")
	held := put("c/example.com/things/-", `{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"namespace":"default","name":"x","finalizers":["example.com/hold"]}}`)
	c.deleteWorkspace("w")
	c.says(workspaces, "w", "things.example.com default/x", hold, "does not serve it")
	must(raw.Delete(t.Context(), held))(t)
	c.await(workspaces, "", "w", gone)
	c.nothingLeft(w.name)
}

// keyIsAway is the stored value of an object that is encrypted with a key that the server
// does not have.
const keyIsAway = "k8s:enc:aesgcm:v1:away:xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"

// A workspace with unreadable objects is not deleted, because these may have finalizers. A
// condition names them, and the deletion continues once they are readable. A forced deletion
// removes only corrupt objects.
func TestUnreadableObjectsKeepAWorkspace(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	a := c.workspace("a")
	w := a.workspace("w")
	raw := c.server.Store().RawClient()
	put := func(key, value string) { must(raw.Put(t.Context(), "/registry/"+key, value))(t) }
	corrupt := map[string]string{
		"c/example.com/broken/-": `{"metadata":{"finalizers":`, "n/core/configmaps/-": "k8s\x00no protobuf", "n/core/pods/-": "k8s\x00no protobuf either",
	}
	for in, value := range corrupt {
		put(fmt.Sprintf("%s/%s/default/x", in, w.name), value)
	}
	thing := fmt.Sprintf("c/example.com/things/-/%s/default/x", w.name)
	put(thing, keyIsAway)
	c.deleteWorkspace("a")
	a.says(workspaces, "w", "cannot be read", "only a forced deletion removes it", "3 more")
	c.says(workspaces, "a", "in workspace w", "cannot be read")
	if err := c.force("a", "ticket 42"); err != nil {
		t.Fatal(err)
	}
	// An object whose key is missing is not deleted by force: the key may come back.
	w.says(logicalClusters, "cluster", "things.example.com default/x cannot be read", "--encryption-provider-config")
	a.says(workspaces, "w", "things.example.com default/x cannot be read", "--encryption-provider-config")
	c.says(workspaces, "a", "in workspace w", "things.example.com default/x cannot be read")
	put(thing, `{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"namespace":"default","name":"x"}}`)
	c.await(workspaces, "", "a", gone)
	c.nothingLeft(a.name, w.name)
}
