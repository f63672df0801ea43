package tenancy

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
)

// shard changes the metadata of the Shard.
func (w *Workspaces) shard(t *testing.T, change func(*metav1.ObjectMeta)) {
	t.Helper()
	key := keys.Key{Resource: w.ShardResource, Cluster: cluster.Root, Name: string(w.Shard)}
	s, rev, err := read[core.Shard](t.Context(), w.Store, key)
	if err != nil || s == nil {
		t.Fatalf("shard %v: %v", s, err)
	}
	change(&s.ObjectMeta)
	u, err := values.Unstructured(s, core.GroupVersion.WithKind("Shard"))
	if err != nil {
		t.Fatal(err)
	}
	if rev, err = w.Store.Commit(t.Context(), []store.Write{{Resource: key.Resource, Cluster: key.Cluster, Object: u, Expect: rev}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Store.Feed().WaitFor(t.Context(), rev); err != nil {
		t.Fatal(err)
	}
}

// TestWorkspacesWaitForAShard shows that a workspace waits while its shard is unschedulable or
// does not match, and that it is complete once it is placed, with its creator as
// administrator and the region of the shard.
func TestWorkspacesWaitForAShard(t *testing.T) {
	w := openWorld(t, t.TempDir())
	w.shard(t, func(m *metav1.ObjectMeta) { setAnnotation(m, core.UnschedulableAnnotation, "") })
	ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: "ada"})
	ws := newWorkspace("waiting")
	ws.SetAnnotations(map[string]string{tenancyapi.OwnerAnnotation: `{"username":"ada","groups":["people"]}`})
	if err := unstructured.SetNestedField(ws.Object, map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"region": "north"}}}, "spec", "location"); err != nil {
		t.Fatal(err)
	}
	if err := w.Create(ctx, cluster.Root, ws); err != nil {
		t.Fatal(err)
	}
	waits := func(why string) {
		t.Helper()
		if err := w.Schedule(t.Context(), cluster.Root, "waiting"); err != nil {
			t.Fatal(err)
		}
		got := w.of(t, cluster.Root, "waiting")
		c := got.Status.Conditions.Get(tenancyapi.WorkspaceScheduled)
		if got.Status.Phase != core.PhaseScheduling || got.Spec.Cluster != "" || got.Spec.URL != "" || c == nil || c.Status != "False" || c.Reason != "Unschedulable" {
			t.Errorf("%s: cluster %q, status %+v", why, got.Spec.Cluster, got.Status)
		}
	}
	waits("unschedulable")
	w.shard(t, func(m *metav1.ObjectMeta) { delete(m.Annotations, core.UnschedulableAnnotation) })
	waits("in no region")
	if got := w.Tree.Unscheduled(); len(got) != 1 || got[0].Name != "waiting" {
		t.Errorf("these wait: %v", got)
	}
	w.shard(t, func(m *metav1.ObjectMeta) { setLabel(m, "region", "north") })
	if err := w.Schedule(t.Context(), cluster.Root, "waiting"); err != nil {
		t.Fatal(err)
	}
	got := w.of(t, cluster.Root, "waiting")
	if got.Status.Phase != core.PhaseReady || !got.Status.Conditions.IsTrue(tenancyapi.WorkspaceScheduled) || got.Labels["region"] != "north" || got.UID != "uid-of-waiting" {
		t.Errorf("placed as %+v", got)
	}
	l, rev, err := read[core.LogicalCluster](t.Context(), w.Store, clusterKey(cluster.Name(got.Spec.Cluster)))
	if err != nil || l.Spec.CreatedBy == nil || l.Spec.CreatedBy.Username != "ada" || l.Spec.CreatedBy.Groups[0] != "people" {
		t.Errorf("logical cluster %+v: %v", l, err)
	}
	if err := w.Store.Feed().WaitFor(t.Context(), rev); err != nil {
		t.Fatal(err)
	}
	if left := w.Tree.Unscheduled(); len(left) != 0 {
		t.Errorf("these still wait: %v", left)
	}
}

// TestAnnounce shows that a restart keeps what administrators wrote on a Shard, and updates its
// addresses.
func TestAnnounce(t *testing.T) {
	dir := t.TempDir()
	w := openWorld(t, dir)
	w.shard(t, func(m *metav1.ObjectMeta) { setLabel(m, "region", "north") })
	w.Store.Close()
	w = openWorldAt(t, dir, "https://moved.example.com")
	s, _, err := read[core.Shard](t.Context(), w.Store, keys.Key{Resource: w.ShardResource, Cluster: cluster.Root, Name: "east"})
	if err != nil {
		t.Fatal(err)
	}
	want := core.ShardSpec{BaseURL: "https://moved.example.com", ExternalURL: "https://moved.example.com", VirtualWorkspaceURL: "https://moved.example.com"}
	if s.Spec != want || s.Labels["region"] != "north" || s.Labels["name"] != "east" {
		t.Errorf("shard %+v", s)
	}
}
