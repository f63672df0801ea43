package quota

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/cluster"
)

func demand(most int64) Demand {
	return Demand{Subject: Subject{schema.GroupResource{Resource: "things"}, "ns"}, Cluster: "c", Most: most}
}

// event counts a change of a thing in a namespace.
func (t *Counters) event(in cluster.Name, namespace, name string, revision, objects int64) {
	t.Changed(Change{Cluster: in, Resource: schema.GroupResource{Resource: "things"}, Namespace: namespace, Revision: revision, Objects: objects,
		Key: func() string { return string(in) + "/" + namespace + "/" + name }}, func() {})
}

// counted returns counters that have read a number of things.
func counted(t *testing.T, things int64) *Counters {
	t.Helper()
	c := &Counters{}
	if _, _, unread := c.Reserve("c/ns/x", []Demand{demand(1)}, true); len(unread) != 1 {
		t.Fatalf("a new counter has a number: %v", unread)
	}
	c.Read("c", demand(1).Subject)(things, 10)
	return c
}

// The counters of creations whose outcome is not known yet outlive the last quota of a cluster.
func TestDropKeepsChargesInFlight(t *testing.T) {
	c := counted(t, 1)
	charge, refused, _ := c.Reserve("c/ns/a", []Demand{demand(2)}, false)
	if charge == nil {
		t.Fatalf("refused: %v", refused)
	}
	c.Drop("c")
	if other, _, _ := c.Reserve("c/ns/b", []Demand{demand(2)}, false); other != nil {
		t.Error("more was admitted than the limit, as a creation in flight was forgotten")
	}
	charge.Failed()
	if c.Drop("c"); c.Tracked("c") {
		t.Error("a cluster without quotas has counters")
	}
}

// What is admitted counts until the change feed has it, and not twice.
func TestCharges(t *testing.T) {
	c := counted(t, 1)
	reserve := func(name string, want bool) *Charge {
		t.Helper()
		charge, refused, _ := c.Reserve("c/ns/"+name, []Demand{demand(3)}, false)
		if (charge != nil) != want {
			t.Fatalf("%s: admitted is %t, %v", name, charge != nil, refused)
		}
		return charge
	}
	a, b := reserve("a", true), reserve("b", true)
	reserve("d", false)
	b.Failed()
	d := reserve("d", true)
	a.Created(20)
	reserve("e", false) // not in the feed yet
	c.event("c", "ns", "a", 20, 1)
	reserve("e", false)
	c.event("c", "ns", "d", 21, 1) // the feed is quicker than the answer of etcd
	reserve("e", false)
	d.Created(21)
	reserve("e", false)
	c.event("c", "other", "a", 22, -1)
	c.event("other", "ns", "a", 23, -1)
	reserve("e", false)
	c.event("c", "ns", "a", 24, -1)
	e := reserve("e", true)
	e.Failed()
	e = reserve("f", true)
	e.Created(30)
	if n, ok := c.Count("c", demand(3).Subject); n != 2 || !ok {
		t.Errorf("%d things", n)
	}
	c.Reset()
	if _, ok := c.Count("c", demand(3).Subject); ok {
		t.Error("after missed changes there is a number")
	}
}

// Changes while a number is read are counted once.
func TestReadingWhileThingsChange(t *testing.T) {
	c := &Counters{}
	done := c.Read("c", demand(1).Subject)
	c.event("c", "ns", "a", 11, 1)
	c.event("c", "ns", "b", 12, 1)
	c.event("c", "ns", "a", 13, -1)
	again := c.Read("c", demand(1).Subject)
	again(6, 12) // as of revision 12, with a and b
	done(4, 10)
	if n, _ := c.Count("c", demand(1).Subject); n != 5 {
		t.Errorf("%d things, want 5", n)
	}
	c.Reset()
	c.Read("c", demand(1).Subject)
	c.Reset()
	again(1, 14)
	if _, ok := c.Count("c", demand(1).Subject); ok {
		t.Error("a number from before missed changes counts")
	}
}

// After random creations, failures and deletions there is never more than the limit, and the
// counters agree with what exists.
func TestCountersAgree(t *testing.T) {
	const most = 7
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		c := counted(t, 0)
		exists, inFlight := map[string]bool{}, map[string]*Charge{}
		revision := int64(100)
		for range 300 {
			name := fmt.Sprint("t", r.IntN(20))
			switch charge := inFlight[name]; {
			case charge != nil && r.IntN(3) == 0:
				charge.Failed()
				delete(inFlight, name)
			case charge != nil:
				revision++
				if r.IntN(2) == 0 {
					charge.Created(revision)
					c.event("c", "ns", name, revision, 1)
				} else {
					c.event("c", "ns", name, revision, 1)
					charge.Created(revision)
				}
				exists[name] = true
				delete(inFlight, name)
			case exists[name]:
				revision++
				c.event("c", "ns", name, revision, -1)
				delete(exists, name)
			default:
				charge, refused, _ := c.Reserve("c/ns/"+name, []Demand{demand(most)}, false)
				if full := len(exists)+len(inFlight) >= most; full != (refused != nil) {
					t.Fatalf("seed %d: %d exist, %d are in flight, and one more is answered %v", seed, len(exists), len(inFlight), refused)
				}
				if charge != nil {
					inFlight[name] = charge
				}
			}
			if n, _ := c.Count("c", demand(1).Subject); n != int64(len(exists)) {
				t.Fatalf("seed %d: %d are counted, %d exist", seed, n, len(exists))
			}
		}
		for _, charge := range inFlight {
			charge.Failed()
		}
		if c.charges.Len() > 0 {
			t.Fatalf("seed %d: %d charges are left", seed, c.charges.Len())
		}
	}
}

// The sum of a tree follows its clusters, also those that are not known at first.
func TestTreeSums(t *testing.T) {
	b := New(0)
	parents := map[cluster.Name]cluster.Name{"top": "", "a": "top", "b": "a", "x": ""}
	b.SetAbove(func(c cluster.Name) ([]cluster.Name, bool) {
		var all []cluster.Name
		for c != "" {
			parent, ok := parents[c]
			if !ok {
				return all, false
			}
			all, c = append(all, c), parent
		}
		return all, true
	})
	want := func(objects, bytes int64) {
		t.Helper()
		if o, n := b.Stored(Bound{Cluster: "top", Tree: true}); o != objects || n != bytes {
			t.Errorf("the tree has %d objects and %d bytes, want %d and %d", o, n, objects, bytes)
		}
	}
	b.Changed("a", 2, 20)
	b.Changed("x", 9, 90)
	want(2, 20)
	b.Changed("top", 1, 10)
	b.Changed("b", 3, 30)
	b.Changed("new", 1, 5) // its LogicalCluster comes later
	want(6, 60)
	parents["new"] = "b"
	want(7, 65)
	b.Changed("a", -2, -20)
	delete(parents, "a") // is deleted with what is below
	b.Changed("b", -3, -30)
	b.Changed("new", -1, -5)
	want(1, 10)
	if o, n := b.Stored(Bound{Cluster: "x"}); o != 9 || n != 90 {
		t.Errorf("a cluster has %d objects and %d bytes", o, n)
	}
	b.Reset()
	b.Changed("top", 4, 40)
	b.Swap()
	want(4, 40)
}
