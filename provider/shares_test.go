package provider

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"
)

// TestDecide lets replicas come, die and follow their plans in any order. No share is ever
// taken from a live holder, and when all have settled, each share has the holder that all
// replicas agree on.
func TestDecide(t *testing.T) {
	live, holders := map[string]bool{}, map[int]string{}
	step := func(self string) (moves int) {
		p := decide(self, live, holders)
		for _, i := range p.take {
			if live[holders[i]] {
				t.Fatalf("%s takes share %d from %s, which is live", self, i, holders[i])
			}
			holders[i] = self
		}
		for _, i := range p.yield {
			delete(holders, i)
		}
		return len(p.take) + len(p.yield)
	}
	for n := range 200 {
		switch name := fmt.Sprint("replica-", rand.IntN(8)); {
		case !live[name]:
			live[name] = true
		case len(live) > 1:
			delete(live, name)
		}
		names := slices.Collect(maps.Keys(live))
		if n%3 != 0 { // not all have noticed
			step(names[0])
			continue
		}
		for moved := 1; moved > 0; {
			moved = 0
			rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
			for _, name := range names {
				moved += step(name)
			}
		}
		for i := range shareCount {
			if !live[holders[i]] || holders[i] != ownerOf(i, names) {
				t.Fatalf("share %d is held by %q, and not by %q", i, holders[i], ownerOf(i, names))
			}
		}
	}
}

// TestTurns shows that tenants take turns.
func TestTurns(t *testing.T) {
	q := &turns{waiting: map[string][]mcreconcile.Request{}}
	push := func(tenant, name string) {
		r := mcreconcile.Request{ClusterName: multicluster.ClusterName(tenant)}
		r.Name = name
		q.Push(r)
	}
	for _, name := range []string{"1", "2", "3"} {
		push("a", name)
	}
	push("b", "1")
	push("c", "1")
	push("b", "2")
	var got []string
	for q.Len() > 0 {
		r := q.Pop()
		got = append(got, string(r.ClusterName)+r.Name)
		if len(got) == 2 {
			push("d", "1")
		}
	}
	if want := []string{"a1", "b1", "c1", "a2", "b2", "d1", "a3"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if len(q.waiting) > 0 {
		t.Errorf("left behind: %v", q.waiting)
	}
}
