package store

import (
	"errors"
	"fmt"
	"testing"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
)

func TestAPurgedClusterLeavesNothing(t *testing.T) {
	s, cm, stop := open(t, t.TempDir())
	defer stop()
	create(t, s, "dying", "other")
	for _, c := range []cluster.Name{"dying", "other"} {
		for i := range 450 {
			name := fmt.Sprintf("m%03d", i)
			if err := cm.Create(in(c), cmRoot+"/ns/"+name, configMap("ns", name, "v"), configMap("", "", ""), 0); err != nil {
				t.Fatal(err)
			}
		}
		for _, key := range []string{"/c/example.com/things/identity/", "/s/core/names/-/"} {
			if _, err := s.RawClient().Put(t.Context(), s.prefix+key+string(c)+"/x", `{}`); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := s.Remains(t.Context(), "dying"); !errors.Is(err, ErrChanged) {
		t.Errorf("a cluster in use is swept: %v", err)
	}
	if _, err := s.Commit(t.Context(), nil, Fence{Cluster: "dying", From: Active, State: Terminating}); err != nil {
		t.Fatal(err)
	}
	items := all(t, s, "dying")
	if len(items) != 452 {
		t.Fatalf("found %d objects", len(items))
	}
	if _, err := s.Purge(t.Context(), "other", all(t, s, "other")); err == nil {
		t.Error("a cluster in use is purged")
	}
	if _, err := s.Purge(t.Context(), "dying", []Item{{Key: items[0].Resource.Key("other", "ns", "m000"), Revision: 1}}); err == nil {
		t.Error("another cluster is purged along")
	}

	// An object that has changed since the sweep found it is not deleted.
	stale := items[0]
	stale.Revision--
	n, err := s.Purge(t.Context(), "dying", append([]Item{stale}, items[1:]...))
	if err != nil || n != 451 {
		t.Errorf("%d deleted: %v", n, err)
	}
	if n, err := s.Purge(t.Context(), "dying", items[:1]); err != nil || n != 1 {
		t.Errorf("%d deleted: %v", n, err)
	}
	if left := all(t, s, "dying"); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if rest := all(t, s, "other"); len(rest) != 452 {
		t.Errorf("another cluster has %d objects", len(rest))
	}

	if s.stamps.Of("dying"); s.Forget("dying") {
		t.Error("forgotten before it is gone")
	}
	if _, err := s.Commit(t.Context(), nil, Fence{Cluster: "dying", From: Terminating, State: Gone}); err != nil {
		t.Fatal(err)
	}
	for s.Forget("dying") {
	}
	s.Feed().Fresh(t.Context())
	stamped := s.stamps.Drop("dying")
	spent := s.guard.tenants.Drop("dying") || s.guard.tenants.Holds("dying") > 0
	_, fenced := s.guard.fences.get("dying")
	if counted := s.feed.Ledger().Of("dying"); stamped || spent || fenced || len(counted) > 0 {
		t.Errorf("remembered: stamp %v, budget %v, fence %v, counts %v", stamped, spent, fenced, counted)
	}
}

// all returns everything stored for a cluster, except its fence.
func all(t *testing.T, s *Store, c cluster.Name) []Item {
	t.Helper()
	s.Feed().Fresh(t.Context())
	var found []Item
	for r, usage := range s.feed.Ledger().Of(c) {
		before := len(found)
		if err := s.Sweep(t.Context(), c, r, func(page []Item) error { found = append(found, page...); return nil }); err != nil {
			t.Fatal(err)
		}
		n, err := s.Count(t.Context(), c, r)
		if err != nil || n != int64(len(found)-before) || n != usage.Objects || n != s.feed.Ledger().Objects(c, r) {
			t.Errorf("%d objects of %s, counted %d and %d: %v", len(found)-before, r.Prefix(), n, usage.Objects, err)
		}
	}
	return found
}

func TestBatchesHoldOneOfEachResource(t *testing.T) {
	var items []Item
	for r := range 40 {
		for i := range r % 7 {
			items = append(items, Item{Key: keys.Key{Resource: keys.Resource{Resource: fmt.Sprint(r)}, Name: fmt.Sprint(i)}})
		}
	}
	n := 0
	for _, batch := range onePerResource(items) {
		seen := map[keys.Resource]bool{}
		for _, i := range batch {
			if seen[i.Resource] {
				t.Errorf("two of %v in one batch", i.Resource)
			}
			seen[i.Resource] = true
		}
		if n += len(batch); len(batch) == 0 || len(batch) > purgeOps {
			t.Errorf("a batch of %d", len(batch))
		}
	}
	if n != len(items) {
		t.Errorf("%d of %d objects are in batches", n, len(items))
	}
}
