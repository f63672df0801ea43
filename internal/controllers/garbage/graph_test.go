package garbage

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
)

func thingAt(id objectID) keys.Key {
	return keys.Key{Resource: keys.Resource{Root: keys.Native, Resource: "things"}, Cluster: id.cluster, Namespace: "ns", Name: string(id.uid)}
}

// slowGraph is the definition of the ownership graph: it computes everything from the
// existing objects and the verdicts of their claims.
type slowGraph struct {
	objects map[objectID]owned
	known   map[objectID]bool // to exist, by those that matter
	found   map[slowClaim]verdict
}

type slowClaim struct {
	owner objectID
	claim
}

func newSlowGraph() *slowGraph {
	return &slowGraph{objects: map[objectID]owned{}, known: map[objectID]bool{}, found: map[slowClaim]verdict{}}
}

type slowEdge struct {
	from objectID
	reference
}

func (s *slowGraph) edgesTo(id objectID) []slowEdge {
	var all []slowEdge
	for _, o := range s.objects {
		for _, r := range o.owners {
			if o.id.cluster == id.cluster && r.uid == id.uid {
				all = append(all, slowEdge{o.id, r})
			}
		}
	}
	return all
}

// matter returns all objects that the graph must have.
func (s *slowGraph) matter() map[objectID]bool {
	all := map[objectID]bool{}
	for _, o := range s.objects {
		if len(o.owners) > 0 || o.waits() {
			all[o.id] = true
		}
		for _, r := range o.owners {
			all[objectID{o.id.cluster, r.uid}] = true
		}
	}
	return all
}

// forget drops the state of objects that the graph need not have, and the verdicts of new
// claims.
func (s *slowGraph) forget() {
	matter := s.matter()
	maps.DeleteFunc(s.known, func(id objectID, _ bool) bool { return !matter[id] })
	live := map[slowClaim]bool{}
	for id := range matter {
		for _, e := range s.edgesTo(id) {
			c := slowClaim{id, e.claim}
			live[c] = true
			if _, ok := s.found[c]; !ok {
				s.found[c] = unchecked
			}
		}
	}
	maps.DeleteFunc(s.found, func(c slowClaim, _ verdict) bool { return !live[c] })
}

func (s *slowGraph) put(o owned) {
	if !s.known[o.id] {
		s.judge(o.id, unchecked)
	}
	s.objects[o.id], s.known[o.id] = o, true
	s.forget()
}

func (s *slowGraph) drop(id objectID) {
	delete(s.objects, id)
	delete(s.known, id)
	s.forget()
	s.judge(id, wrong)
}

func (s *slowGraph) judge(id objectID, v verdict) {
	for c := range s.found {
		if c.owner == id {
			s.found[c] = v
		}
	}
}

func (s *slowGraph) look(id objectID) look {
	o := s.objects[id]
	l := look{id: id, owned: len(o.owners) > 0, phase: o.phase}
	if s.known[id] {
		l.at = placeOf(thingAt(id))
	}
	for _, e := range s.edgesTo(id) {
		l.dependents++
		if e.blocks && e.from != id {
			l.blocking++
		}
		if v := s.found[slowClaim{id, e.claim}]; v == unchecked || v == unserved {
			l.sought = l.sought || len(s.objects[e.from].owners) <= manyOf
			if !slices.Contains(l.unsettled, e.claim) {
				l.unsettled = append(l.unsettled, e.claim)
			}
		}
	}
	for _, r := range o.owners {
		if s.objects[objectID{id.cluster, r.uid}].orphaning && !slices.Contains(l.leaving, r.uid) {
			l.leaving = append(l.leaving, r.uid)
		}
	}
	return l
}

// reasons returns why objects need a check.
func (s *slowGraph) reasons() map[objectID]map[string]bool {
	all := map[objectID]map[string]bool{}
	for id := range s.matter() {
		why := map[string]bool{}
		l := s.look(id)
		if l.foreground {
			why["foreground"] = true
			why[fmt.Sprint("unblocked ", l.blocking == 0)] = true
		}
		if l.orphaning {
			why["orphaning"] = true
			why[fmt.Sprint("left ", l.dependents == 0)] = true
		}
		for _, c := range l.unsettled {
			why[fmt.Sprint("unsettled ", c)] = true
		}
		for _, r := range s.objects[id].owners {
			owner := objectID{id.cluster, r.uid}
			if s.found[slowClaim{owner, r.claim}] == wrong {
				why[fmt.Sprint("wrong ", r.uid, r.claim)] = true
			}
			if s.objects[owner].waits() {
				why[fmt.Sprint("awaited by ", r.uid)] = true
			}
		}
		delete(why, "unblocked false")
		delete(why, "left false")
		if len(why) > 0 {
			all[id] = why
		}
	}
	return all
}

// world makes random operations on few objects, so that they often meet.
type world struct{ *rand.Rand }

func (w world) id() objectID {
	return objectID{cluster.Name(fmt.Sprint("c", w.IntN(2))), types.UID(fmt.Sprint("u", w.IntN(5)))}
}

func (w world) object() owned {
	id := w.id()
	o := owned{id: id, at: placeOf(thingAt(id))}
	for range w.IntN(3) {
		o.owners = append(o.owners, reference{
			uid: w.id().uid, blocks: w.IntN(2) == 0,
			claim: claim{apiVersion: "v1", kind: fmt.Sprint("Kind", w.IntN(2)), name: "n", namespace: "ns"},
		})
	}
	if w.IntN(3) == 0 {
		o.foreground = w.IntN(2) == 0
		o.orphaning = !o.foreground && w.IntN(2) == 0
	}
	return o
}

// The graph always equals its slow definition, and wakes each object with a new reason for
// a check.
func TestOwnershipIsAsDefined(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		w := world{rand.New(rand.NewPCG(seed, 1))}
		g, s := newOwnership(), newSlowGraph()
		for step := range 60 {
			before := s.reasons()
			what := w.step(g, s)
			if why := differences(g, s, before); why != "" {
				t.Fatalf("seed %d, step %d, %s: %s", seed, step, what, why)
			}
		}
		for id := range maps.Clone(s.objects) {
			g.drop(id, placeOf(thingAt(id)))
		}
		if len(g.nodes) > 0 {
			t.Fatalf("seed %d: %d nodes are left of nothing", seed, len(g.nodes))
		}
	}
}

// step does one operation on both graphs, and returns its description.
func (w world) step(g *ownership, s *slowGraph) string {
	switch n := w.IntN(10); {
	case n < 5:
		o := w.object()
		g.put(o)
		s.put(o)
		return fmt.Sprintf("put %+v", o)
	case n < 7:
		id := w.id()
		g.drop(id, placeOf(thingAt(id)))
		s.drop(id)
		return fmt.Sprintf("drop %v", id)
	case n < 8:
		id := w.id()
		if elsewhere := (place{name: "elsewhere"}); s.known[id] {
			g.drop(id, elsewhere) // another object with the same UID
		}
		return fmt.Sprintf("drop %v elsewhere", id)
	default:
		id := w.id()
		l, ok := g.look(id)
		if !ok || len(l.unsettled) == 0 {
			return "nothing"
		}
		c, v := l.unsettled[w.IntN(len(l.unsettled))], verdict(1+w.IntN(3))
		at := place{}
		if v == held {
			at = placeOf(thingAt(id))
		}
		if g.settle(id, l.seen-1, c, v, at) {
			return "settled what was seen of another object"
		}
		if g.settle(id, l.seen, c, v, at) {
			s.found[slowClaim{id, c}] = v
			s.known[id] = s.known[id] || v == held
		}
		return fmt.Sprintf("settle %v %v as %d", id, c, v)
	}
}

// differences describes how a graph differs from its definition.
func differences(g *ownership, s *slowGraph, before map[objectID]map[string]bool) string {
	matter, after := s.matter(), s.reasons()
	if len(g.nodes) != len(matter) {
		return fmt.Sprintf("has %d nodes, %d matter", len(g.nodes), len(matter))
	}
	for id := range matter {
		got, ok := g.look(id)
		want := s.look(id)
		got.seen = 0
		for _, l := range []*look{&got, &want} {
			slices.SortFunc(l.unsettled, func(a, b claim) int { return strings.Compare(a.kind, b.kind) })
			slices.Sort(l.leaving)
		}
		if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); !ok || g != w {
			return fmt.Sprintf("%v is\n%s, should be\n%s", id, g, w)
		}
		circular := slices.ContainsFunc(s.edgesTo(id), func(e slowEdge) bool { return s.objects[e.from].foreground })
		if g.circular(id) != circular {
			return fmt.Sprintf("%v: circular is %t", id, !circular)
		}
	}
	woken := g.woken()
	for id, why := range after {
		for reason := range why {
			if !before[id][reason] && !slices.Contains(woken, id) {
				return fmt.Sprintf("%v is not woken, though %s", id, reason)
			}
		}
	}
	due := map[objectID]bool{}
	for _, id := range g.due() {
		due[id] = true
	}
	for id := range matter {
		if due[id] != (len(after[id]) > 0) {
			return fmt.Sprintf("%v: due is %t, reasons are %v", id, due[id], after[id])
		}
	}
	return ""
}

// Objects without references have no node and are not woken.
func TestObjectsWithoutOwnersCostNothing(t *testing.T) {
	t.Parallel()
	g := newOwnership()
	for i := range 1000 {
		id := objectID{"c1", types.UID(fmt.Sprint(i))}
		g.put(owned{id: id, at: placeOf(thingAt(id))})
	}
	if len(g.nodes) != 0 || len(g.woken()) != 0 {
		t.Errorf("%d nodes", len(g.nodes))
	}
}

// Lookups of claims and owners do not search lists: with these numbers, linear searches
// would take hours.
func TestManyNamesOfAnOwner(t *testing.T) {
	t.Parallel()
	const n = 100_000
	g := newOwnership()
	child, few := objectID{"c1", "child"}, objectID{"c1", "few"}
	refs := make([]reference, n)
	for i := range refs {
		refs[i] = reference{uid: "top", claim: claim{name: fmt.Sprint(i)}, blocks: i%2 == 0}
	}
	object := func(id objectID, refs []reference) owned {
		return owned{id: id, at: placeOf(thingAt(id)), owners: refs}
	}
	g.put(object(child, refs))
	if l, ok := g.look(objectID{"c1", "top"}); !ok || l.dependents != n || l.blocking != n/2 || len(l.unsettled) != n || l.sought {
		t.Errorf("%d dependents, of which %d block, %d claims, sought: %t", l.dependents, l.blocking, len(l.unsettled), l.sought)
	}
	g.put(object(child, append(refs[n/2:], refs[:n/2]...))) // in another order
	g.put(object(child, refs[:20]))
	g.put(object(few, refs[15:18]))
	for _, r := range refs[:20] {
		g.settle(objectID{"c1", "top"}, g.nodes[objectID{"c1", "top"}].seen, r.claim, unserved, place{})
	}
	if l, _ := g.look(objectID{"c1", "top"}); l.dependents != 23 || len(l.unsettled) != 20 || !l.sought {
		t.Errorf("%d dependents, %d claims, sought: %t", l.dependents, len(l.unsettled), l.sought)
	}
	for _, o := range []owned{object(child, refs[:3]), object(few, nil), object(child, nil)} {
		g.put(o)
	}
	if len(g.nodes) != 0 {
		t.Errorf("%d nodes are left of nothing", len(g.nodes))
	}
}

// An owner in another namespace is reported once for each dependent.
func TestMisplacedOwnersAreReportedOnce(t *testing.T) {
	t.Parallel()
	g := newOwnership()
	top, child := objectID{"c1", "top"}, objectID{"c1", "child"}
	at := placeOf(thingAt(child))
	at.namespace = "other"
	g.put(owned{id: child, at: at, owners: []reference{{uid: "top", claim: claim{name: "top", namespace: "other"}}}})
	if got := g.misplaced(child); len(got) != 0 {
		t.Errorf("reported before the owner was seen: %v", got)
	}
	g.put(owned{id: top, at: placeOf(thingAt(top))})
	got := g.misplaced(child)
	if len(got) != 1 || got[0].uid != "top" {
		t.Fatalf("got %v", got)
	}
	if again := g.misplaced(child); len(again) != 1 {
		t.Errorf("marked as reported too early: %v", again)
	}
	g.reported(child, got[0])
	if got := g.misplaced(child); len(got) != 0 {
		t.Errorf("reported again: %v", got)
	}
}

// The time to delete an owner is proportional to the number of its dependents.
func BenchmarkOwnerOfManyGoes(b *testing.B) {
	const n = 10_000
	for b.Loop() {
		b.StopTimer()
		g := newOwnership()
		fill(g, n, n)
		top := objectID{"c1", "owner-0"}
		b.StartTimer()
		g.put(owned{id: top, at: placeOf(thingAt(top)), phase: phase{foreground: true}})
		for i := range n {
			id := objectID{"c1", uid(i)}
			g.drop(id, placeOf(thingAt(id)))
		}
		g.drop(top, placeOf(thingAt(top)))
		if len(g.nodes) != 0 {
			b.Fatal("something is left")
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/dependent")
}

// BenchmarkOwnershipMemory measures the memory per object: without owners, with an owner of
// its own, and with an owner that a hundred objects share.
func BenchmarkOwnershipMemory(b *testing.B) {
	const n = 100_000
	for name, each := range map[string]int{"none": 0, "own": 1, "shared": 100} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				g := newOwnership()
				fill(g, n, each)
				g.woken()
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/n, "B/object")
				runtime.KeepAlive(g)
			}
		})
	}
}

func uid(i int) types.UID { return types.UID(fmt.Sprintf("0b9eb2c6-1b13-4f3b-a9cc-%012d", i)) }

// fill puts n objects into a graph; each group of that size has one owner.
func fill(g *ownership, n, each int) {
	for i := range n {
		id := objectID{"c1", uid(i)}
		o := owned{id: id, at: placeOf(thingAt(id))}
		if each > 0 {
			o.owners = []reference{{uid: types.UID(fmt.Sprint("owner-", i/each)), blocks: true, claim: claim{"v1", "ConfigMap", "owner", "ns"}}}
		}
		g.put(o)
	}
}
