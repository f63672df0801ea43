package quota

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp/internal/cluster"
)

// below returns the tenant of a cluster: a of a1 and a2, b of b1.
func below(c cluster.Name) cluster.Name {
	if len(c) == 2 {
		return c[:1]
	}
	return c
}

// TestBudget checks that all clusters of a tenant share one rate limit.
func TestBudget(t *testing.T) {
	b, now := New(0), time.Now()
	b.SetTenant(below)
	write := func(c cluster.Name, n int) error { return b.AllowAt(now, Write{Cluster: c, Bytes: n}, 0) }
	for _, c := range []cluster.Name{"a1", "a2", "a3", "a4"} {
		if err := write(c, WriteBurst/4); err != nil {
			t.Fatalf("%s: %v", c, err)
		}
	}
	err := write("a5", 1)
	if !apierrors.IsTooManyRequests(err) {
		t.Fatalf("one more cluster of the tenant: %v", err)
	}
	if wait, ok := apierrors.SuggestsClientDelay(err); !ok || wait < 1 {
		t.Errorf("no delay suggested: %v", err)
	}
	if err := write("b1", WriteBurst); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	if err := write("system:admin", 2*WriteBurst); err != nil {
		t.Errorf("a system cluster: %v", err)
	}
	now = now.Add(time.Second)
	if err := write("a2", WriteRate); err != nil {
		t.Errorf("a second later: %v", err)
	}
	for i := range 5000 {
		now = now.Add(time.Minute)
		if err := write(cluster.Name(fmt.Sprint("tenant", i)), 1); err != nil {
			t.Fatal(err)
		}
	}
	if n := b.buckets.Len(); n > 2048 {
		t.Errorf("%d tenants have state", n)
	}
}

func TestTenantsHoldAShareOfTheDatabase(t *testing.T) {
	const database = 400 << 20
	b := New(25)
	b.Changed("a1", 0, 60<<20) // before its tenant is known
	b.Changed("b1", 0, 10<<20)
	b.SetTenant(below)
	b.Changed("a2", 0, 30<<20)
	create := func(c cluster.Name, n int) error {
		return b.Allow(Write{Cluster: c, Bytes: n, Creates: true}, database)
	}
	if err := create("a3", 10<<20); err != nil {
		t.Errorf("within the share: %v", err)
	}
	err := create("a3", 10<<20+1)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "a and all below it store 90.0 MiB, and the limit of one tenant is 100.0 MiB") {
		t.Errorf("beyond the share: %v", err)
	}
	if err := create("b2", 20<<20); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	if err := b.Allow(Write{Cluster: "a1", Bytes: 15 << 20}, database); err != nil {
		t.Errorf("an update: %v", err)
	}
	if err := b.Allow(Write{Cluster: "a1", Bytes: 21 << 20}, database); !apierrors.IsForbidden(err) {
		t.Errorf("an update far beyond the share: %v", err)
	}
	if err := b.Allow(Write{Cluster: "a1", Bytes: 21 << 20, Clears: true}, database); err != nil {
		t.Errorf("a deletion: %v", err)
	}
	if err := create("root", 100<<20); err != nil {
		t.Errorf("root: %v", err)
	}
	b.Changed("a1", 0, -60<<20)
	if err := create("a3", 20<<20); err != nil {
		t.Errorf("after a deletion: %v", err)
	}
	b.Reset()
	b.Changed("a2", 0, 95<<20)
	if n := b.Holds("a"); n != 30<<20 {
		t.Errorf("%d bytes during a rebuild", n)
	}
	b.Swap()
	if n := b.Holds("a"); n != 95<<20 {
		t.Errorf("%d bytes after a rebuild", n)
	}
}

// Clusters without objects take no memory.
func TestSumsForget(t *testing.T) {
	b := New(0)
	b.SetTenant(below)
	b.Changed("a1", 0, 5)
	b.Changed("a2", 0, 7)
	b.Changed("a1", 0, -5)
	b.Changed("a2", 0, -7)
	if b.now.clusters.Len() > 0 || b.now.tenants.Len() > 0 {
		t.Errorf("%d clusters and %d tenants have state", b.now.clusters.Len(), b.now.tenants.Len())
	}
}
