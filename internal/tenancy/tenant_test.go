package tenancy

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// All clusters below one topmost workspace or one home are one tenant, and so are those
// below a workspace whose type is a boundary.
func TestTenants(t *testing.T) {
	w := openWorld(t, t.TempDir())
	for name, tenant := range map[string]string{"island": "true", "plain": ""} {
		of := &tenancyapi.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{tenancyapi.TenantAnnotation: tenant}}}
		if err := w.commitType(t.Context(), cluster.Root, of, 0); err != nil {
			t.Fatal(err)
		}
	}
	home := cluster.Home("ada")
	if err := w.MakeCluster(t.Context(), home); err != nil {
		t.Fatal(err)
	}
	var last int64
	workspace := func(parent cluster.Name, name, typ string) cluster.Name {
		t.Helper()
		ws := newWorkspace(name)
		_ = unstructured.SetNestedField(ws.Object, typ, "spec", "type", "name")
		if err := w.Create(t.Context(), parent, ws); err != nil {
			t.Fatal(err)
		}
		c := cluster.Name(w.of(t, parent, name).Spec.Cluster)
		rev, _, err := w.Store.Revision(t.Context(), keys.Key{Resource: tree.LogicalClusters(), Cluster: c, Name: "cluster"})
		if err != nil {
			t.Fatal(err)
		}
		last = max(last, rev)
		return c
	}
	top := workspace(cluster.Root, "top", "universal")
	below := workspace(top, "below", "plain")
	island := workspace(below, "island", "island")
	onIsland := workspace(island, "deep", "universal")
	atHome := workspace(home, "at-home", "universal")
	abyss := top
	for range 150 { // nobody gets more tenants by depth
		abyss = workspace(abyss, "a", "universal")
	}
	if err := w.Store.Feed().WaitFor(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	for c, want := range map[cluster.Name]cluster.Name{
		top: top, below: top, abyss: top, island: island, onIsland: island, home: home, atHome: home, cluster.Root: cluster.Root, "nosuch": "nosuch",
	} {
		if got := w.Tree.Tenant(c); got != want {
			t.Errorf("the tenant of %s (%s) is %s (%s)", c, w.Tree.PathOf(c), got, w.Tree.PathOf(got))
		}
	}
	for id, want := range map[string]bool{"root:island": true, "root:plain": false, "root:top:island": false, "island": false, "": false} {
		if got := w.Types.Boundary(id); got != want {
			t.Errorf("a type %q is a boundary: %v", id, got)
		}
	}
}
