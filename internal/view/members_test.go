package view

import (
	"testing"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/membership"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// The sets of a view follow the phases of clusters, also through a rebuild.
func TestMembers(t *testing.T) {
	roots := map[cluster.Name]tree.Root{}
	m := &members{
		Groups: membership.NewGroups[group](func() int64 { return 5 }),
		root:   func(c cluster.Name) (tree.Root, bool) { r, ok := roots[c]; return r, ok },
	}
	change := func(c cluster.Name, rev int64, r *tree.Root) {
		if delete(roots, c); r != nil {
			roots[c] = *r
		}
		m.Apply(feed.Event{Key: keys.Key{Resource: tree.LogicalClusters(), Cluster: c, Name: core.LogicalClusterName}, Revision: rev})
	}
	waiting := &tree.Root{Phase: core.PhaseInitializing, Initializers: []core.Initializer{"root:a", "root:b"}, Terminators: []core.Terminator{"root:a"}}
	change("early", 3, waiting)
	web, done := m.Use(group{core.PhaseInitializing, "root:a"})
	ending, endingDone := m.Use(group{core.PhaseTerminating, "root:a"})
	if !web.Has("early", 5) || ending.Has("early", 5) {
		t.Error("wrong members at first")
	}
	change("late", 6, waiting)
	change("early", 7, &tree.Root{Phase: core.PhaseInitializing, Initializers: []core.Initializer{"root:b"}})
	change("late", 8, &tree.Root{Phase: core.PhaseTerminating, Initializers: []core.Initializer{"root:a"}, Terminators: []core.Terminator{"root:a"}})
	for _, c := range []struct {
		of   cluster.Name
		at   int64
		want bool
	}{{"early", 6, true}, {"early", 7, false}, {"late", 5, false}, {"late", 6, true}, {"late", 7, true}, {"late", 8, false}} {
		if got := web.Has(c.of, c.at); got != c.want {
			t.Errorf("%s at revision %d: member %t, want %t", c.of, c.at, got, c.want)
		}
	}
	if !ending.Has("late", 8) {
		t.Error("a cluster that is being deleted is not in the view of terminators")
	}
	m.Reset()
	m.Apply(feed.Event{Key: keys.Key{Resource: tree.LogicalClusters(), Cluster: "late", Name: core.LogicalClusterName}, Revision: 8})
	m.Done()
	if !ending.Has("late", 9) || web.Has("late", 9) {
		t.Error("wrong members after a rebuild")
	}
	done()
	endingDone()
}
