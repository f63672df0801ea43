package feed

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp/internal/quota"
	"github.com/unforked/kcp/internal/storage/keys"
)

// Tenants choose the names of resources. The ledger forgets resources without objects.
func TestLedgerForgetsResources(t *testing.T) {
	l := newLedger(quota.New(25))
	of := func(group string) keys.Key {
		return keys.CustomResource(keys.Resource{Group: group, Resource: "things"}.GroupResource(), "").Key("c1", "", "x")
	}
	kept := of("kept.example.com")
	l.apply(Event{Key: kept, Value: []byte("four")})
	for i := range 10_000 {
		k := of(fmt.Sprintf("g%d.example.com", i))
		l.apply(Event{Key: k, Value: []byte("v")})
		if i%10 == 0 {
			k.Cluster = "c2"
			l.apply(Event{Key: k, Value: []byte("v")})
			l.apply(Event{Key: k, Previous: []byte("v")})
			k.Cluster = "c1"
		}
		l.apply(Event{Key: k, Previous: []byte("v")})
	}
	if n := len(l.now.of); n > 2 || l.now.numbers.Len() != 1 || len(l.now.free) > 1 {
		t.Errorf("%d numbers, %d of them free, %d resources", n, len(l.now.free), l.now.numbers.Len())
	}
	if d := cmp.Diff(map[keys.Resource]Usage{kept.Resource: {Objects: 1, Bytes: 4}}, l.Of("c1")); d != "" || len(l.Of("c2")) != 0 || l.Clusters() != 1 {
		t.Errorf("what is left (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]keys.Resource{kept.Resource}, l.Resources()); d != "" {
		t.Errorf("resources (-want +got):\n%s", d)
	}
	again := of("again.example.com")
	l.apply(Event{Key: again, Value: []byte("v")})
	if l.Objects("c1", again.Resource) != 1 || l.Objects("c1", kept.Resource) != 1 || l.Bytes(kept.Resource) != 4 {
		t.Error("a number that was free is counted with another")
	}
	kept.Cluster = "c2"
	l.apply(Event{Key: kept, Value: []byte("fifteen")})
	l.apply(Event{Key: kept, Previous: []byte("fifteen"), Value: []byte("five")})
	if n := l.Bytes(kept.Resource); n != 8 {
		t.Errorf("two clusters have %d bytes, want 8", n)
	}
}

// A resource of any identity, in any cluster, ends the wait once: the first object, or a rebuild that
// finds one.
func TestLedgerAwait(t *testing.T) {
	l := newLedger(quota.New(25))
	gr := schema.GroupResource{Group: "example.com", Resource: "things"}
	thing := keys.CustomResource(gr, "identity").Key("c1", "", "x")
	other := keys.CustomResource(schema.GroupResource{Group: "example.com", Resource: "others"}, "identity").Key("c1", "", "x")
	told := map[string]int{}
	await := func(name string) func() { return l.Await(gr, func() { told[name]++ }) }
	await("early")
	forget := await("forgotten")
	forget()
	l.apply(Event{Key: other, Value: []byte("v")})
	if len(told) > 0 {
		t.Fatalf("%v were told of another resource", told)
	}
	l.apply(Event{Key: thing, Value: []byte("v")})
	l.apply(Event{Key: thing, Previous: []byte("v"), Value: []byte("w")})
	await("late")()
	l.apply(Event{Key: thing, Previous: []byte("w")})
	await("rebuilt")
	l.reset()
	l.apply(Event{Key: thing, Value: []byte("v")})
	if told["rebuilt"] != 0 {
		t.Error("told before the rebuild has ended")
	}
	l.swap()
	if d := cmp.Diff(map[string]int{"early": 1, "late": 1, "rebuilt": 1}, told); d != "" || len(l.awaiting) > 0 {
		t.Errorf("calls (-want +got), %d still wait:\n%s", len(l.awaiting), d)
	}
}
