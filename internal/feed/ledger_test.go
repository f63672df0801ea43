package feed

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/quota"
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
