package tenancy

import (
	"fmt"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// openWorld returns workspaces on a real store, with a root workspace.
func openWorld(t testing.TB, dir string) *Workspaces {
	t.Helper()
	return openWorldAt(t, dir, "https://example.com")
}

// openWorldAt is openWorld for a server with that URL.
func openWorldAt(t testing.TB, dir, url string) *Workspaces {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Dir: dir, Version: "1.36", NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	versions := schema.GroupVersions{corev1.SchemeGroupVersion, rbacv1.SchemeGroupVersion}
	codec := scheme.Codecs.CodecForVersions(info.Serializer, info.Serializer, versions, versions)
	for _, gr := range []schema.GroupResource{
		{Resource: "namespaces"}, {Resource: "serviceaccounts"}, {Resource: "configmaps"}, {Resource: "secrets"},
		{Group: rbacv1.GroupName, Resource: "clusterrolebindings"}, {Group: rbacv1.GroupName, Resource: "clusterroles"},
	} {
		s.Values().Register(keys.NativeResource(gr), values.Codec{Codec: codec})
	}
	identity, err := Identity(t.Context(), s, "certificates", Export)
	if err != nil {
		t.Fatal(err)
	}
	resource := WorkspaceResource(identity)
	types := tree.TypeResource(identity)
	w := &Workspaces{Store: s, Resource: resource, Tree: tree.NewTree(s, resource, url), TypeResource: types, BaseURL: url, RootCA: NewRootCA("certificates"), Shard: "east",
		ShardResource: ShardResource(""), Shards: NewShards(s, ShardResource("")),
		NameElsewhere: func(_ cluster.Name, u user.Info) string { return u.GetName() }}
	w.Types = tree.NewTypes(s, types, w.Tree, url)
	s.OnWrite(resource, DeriveWorkspace)
	s.OnWrite(tree.LogicalClusters(), DeriveCluster)
	if err := s.Feed().Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.Bootstrap(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.Announce(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

func newWorkspace(name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"type": map[string]any{"name": "universal", "path": "root"}}}}
	u.SetGroupVersionKind(tenancyapi.GroupVersion.WithKind("Workspace"))
	u.SetName(name)
	u.SetUID(types.UID("uid-of-" + name))
	return u
}

func (w *Workspaces) of(t *testing.T, parent cluster.Name, name string) *tenancyapi.Workspace {
	t.Helper()
	ws, _, err := read[tenancyapi.Workspace](t.Context(), w.Store, keys.Key{Resource: w.Resource, Cluster: parent, Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return ws
}

// A workspace is complete when Create returns, with its status, the binding of its creator
// and its initial content.
func TestCreateMakesAWholeWorkspace(t *testing.T) {
	w := openWorld(t, t.TempDir())
	ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: "ada", Groups: []string{"people"}})
	ws := newWorkspace("new")
	if err := w.Create(ctx, cluster.Root, ws); err != nil {
		t.Fatal(err)
	}
	stored := w.of(t, cluster.Root, "new")
	if got, _, _ := unstructured.NestedString(ws.Object, "status", "phase"); got != "Ready" || stored.Status.Phase != core.PhaseReady {
		t.Errorf("phase %q, stored %q", got, stored.Status.Phase)
	}
	if stored.Spec.URL != "https://example.com/clusters/root:new" || stored.Labels[core.PhaseLabel] != "Ready" {
		t.Errorf("URL %s, labels %v", stored.Spec.URL, stored.Labels)
	}
	if stored.Annotations[core.ShardAnnotation] != "east" || stored.Annotations[tenancyapi.ShardHashAnnotation] != Shard("east").hash() || RootShard.hash() != "1pfxsevk" {
		t.Errorf("shard %v; the hash of the root shard is %s", stored.Annotations, RootShard.hash())
	}
	c := cluster.Name(stored.Spec.Cluster)
	l, rev, err := read[core.LogicalCluster](t.Context(), w.Store, clusterKey(c))
	if err != nil {
		t.Fatal(err)
	}
	if l.Status.Phase != core.PhaseReady || l.Annotations[core.PathAnnotation] != "root:new" || l.Spec.CreatedBy.Username != "ada" ||
		l.Spec.Owner.Cluster != "root" || l.Spec.Owner.Name != "new" || l.Spec.Owner.UID != stored.UID {
		t.Errorf("logical cluster %+v", l)
	}
	if ws.GetResourceVersion() != strconv.FormatInt(rev, 10) {
		t.Errorf("workspace at %s, its cluster at %d: they become ready together", ws.GetResourceVersion(), rev)
	}
	want := map[keys.Resource]int64{
		native("", "namespaces"): 2, native("", "serviceaccounts"): 2, native("", "configmaps"): 2,
		native(rbacv1.GroupName, "clusterrolebindings"): 1, tree.LogicalClusters(): 1,
	}
	if err := w.Store.Feed().WaitFor(t.Context(), rev); err != nil {
		t.Fatal(err)
	}
	for r, usage := range w.Store.Feed().Ledger().Of(c) {
		if usage.Objects != want[r] {
			t.Errorf("%d objects of %s, want %d", usage.Objects, r.Resource, want[r])
		}
		delete(want, r)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
	if err := w.Create(ctx, cluster.Root, newWorkspace("new")); err == nil {
		t.Error("there can be two workspaces of one name")
	}
}

// Complete completes a creation that a crash interrupted after its first transaction, also
// if a part of the content exists. It does nothing if the Workspace is missing.
func TestCompleteTakesUpWhatWasCut(t *testing.T) {
	dir := t.TempDir()
	w := openWorld(t, dir)
	b := w.birth(cluster.NewName(), metav1.Now())
	ws := &tenancyapi.Workspace{}
	ws.Name, ws.UID = "cut", "1"
	if _, err := w.createFirst(t.Context(), b, cluster.Root, ws, nil); err != nil {
		t.Fatal(err)
	}
	if got := w.of(t, cluster.Root, "cut").Status.Phase; got != core.PhaseScheduling {
		t.Fatalf("phase %s after the first transaction", got)
	}
	if _, err := w.Store.Commit(t.Context(), b.namespace(metav1.NamespaceSystem)[:1]); err != nil {
		t.Fatal(err)
	}
	w.Store.Close()

	w = openWorld(t, dir)
	for range 2 { // the second call writes nothing
		if err := w.Complete(t.Context(), b.cluster); err != nil {
			t.Fatal(err)
		}
		if got := w.of(t, cluster.Root, "cut").Status.Phase; got != core.PhaseReady {
			t.Errorf("phase %s after it was completed", got)
		}
	}
	other := w.birth(cluster.NewName(), metav1.Now())
	ws.Name = "gone"
	y, err := w.createFirst(t.Context(), other, cluster.Root, ws, nil)
	if err != nil {
		t.Fatal(err)
	}
	del := store.Write{Resource: w.Resource, Cluster: cluster.Root, Object: &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "gone"}}}, Expect: y.WorkspaceRevision, Delete: true}
	if _, err := w.Store.Commit(t.Context(), []store.Write{del}); err != nil {
		t.Fatal(err)
	}
	if err := w.Complete(t.Context(), other.cluster); err != nil {
		t.Errorf("a cluster without its Workspace: %v", err)
	}
}

// After the URL of the server changed, the URLs of workspaces are updated.
func TestUpdateURL(t *testing.T) {
	dir := t.TempDir()
	w := openWorld(t, dir)
	if err := w.Create(t.Context(), cluster.Root, newWorkspace("moving")); err != nil {
		t.Fatal(err)
	}
	c := cluster.Name(w.of(t, cluster.Root, "moving").Spec.Cluster)
	w.Store.Close()

	w = openWorldAt(t, dir, "https://elsewhere.example.com:8443")
	for _, moved := range []cluster.Name{cluster.Root, c} {
		if root, _ := w.Tree.Cluster(moved); !root.StaleURL {
			t.Errorf("the URL of cluster %s is not stale", moved)
		}
		if err := w.UpdateURL(t.Context(), moved); err != nil {
			t.Fatal(err)
		}
		l, rev, err := read[core.LogicalCluster](t.Context(), w.Store, clusterKey(moved))
		if err != nil || l.Status.URL != "https://elsewhere.example.com:8443/clusters/"+string(moved) {
			t.Errorf("cluster %s has the URL %s: %v", moved, l.Status.URL, err)
		}
		if err := w.Store.Feed().WaitFor(t.Context(), rev); err != nil {
			t.Fatal(err)
		}
		if root, _ := w.Tree.Cluster(moved); root.StaleURL {
			t.Errorf("the URL of cluster %s is still stale", moved)
		}
	}
	if got := w.of(t, cluster.Root, "moving").Spec.URL; got != "https://elsewhere.example.com:8443/clusters/root:moving" {
		t.Errorf("the workspace has the URL %s", got)
	}
}

// No workspace is created in a cluster that is being deleted or does not exist.
func TestCreateUnderADyingParent(t *testing.T) {
	w := openWorld(t, t.TempDir())
	if err := w.Create(t.Context(), "nosuchparent", newWorkspace("a")); !apierrors.IsNotFound(err) {
		t.Errorf("under a parent that does not exist: %v", err)
	}
	if err := fence(t.Context(), w.Store, "parent"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Store.Commit(t.Context(), nil, store.Fence{Cluster: "parent", From: store.Active, State: store.Terminating}); err != nil {
		t.Fatal(err)
	}
	if err := w.Create(t.Context(), "parent", newWorkspace("a")); !apierrors.IsForbidden(err) {
		t.Errorf("under a parent that is being deleted: %v", err)
	}
}

// The identity of Workspaces is that of a secret, and does not change.
func TestIdentity(t *testing.T) {
	dir := t.TempDir()
	var ids []string
	for range 2 {
		w := openWorld(t, dir)
		ids = append(ids, w.Resource.Identity)
		w.Store.Close()
	}
	if ids[0] != ids[1] || len(ids[0]) != 64 {
		t.Errorf("identities %q", ids)
	}
}

func BenchmarkCreate(b *testing.B) {
	w := openWorld(b, b.TempDir())
	for i := 0; b.Loop(); i++ {
		if err := w.Create(b.Context(), cluster.Root, newWorkspace(fmt.Sprint("w", i))); err != nil {
			b.Fatal(err)
		}
	}
}
