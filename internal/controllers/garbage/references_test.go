package garbage

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/unforked/kcp/internal/cluster"
)

// The references of all clusters of a tenant count together, and those in flight count, too.
func TestReferencesCountByTenant(t *testing.T) {
	g := &Collector{graph: newOwnership()}
	for _, c := range []cluster.Name{"a-1", "a-2", "b-1"} {
		g.graph.put(owned{id: objectID{c, "child"}, at: place{name: "child"}, owners: []reference{{uid: "one"}, {uid: types.UID("two")}}})
	}
	r := NewReferences(g, func(c cluster.Name) cluster.Name { return c[:1] })
	if !r.Add("a-3", 2, 6) || r.Add("a-1", 1, 6) {
		t.Error("the limit of a tenant is not that of all its clusters")
	}
	if !r.Add("b-1", 4, 6) {
		t.Error("another tenant has no room")
	}
	g.graph.drop(objectID{"a-1", "child"}, place{name: "child"})
	r.counted = time.Time{}
	if !r.Add("a-1", 2, 6) {
		t.Error("deleted objects count")
	}
	for _, c := range []cluster.Name{"a-2", "b-1"} {
		g.graph.drop(objectID{c, "child"}, place{name: "child"})
	}
	if len(g.graph.links) != 0 {
		t.Errorf("left are %v", g.graph.links)
	}
}
