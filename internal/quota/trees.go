package quota

import (
	"time"

	"github.com/unforked/kcp/internal/cluster"
)

// A Bound is a limit of what a cluster stores, or it and all clusters below it.
type Bound struct {
	Cluster cluster.Name
	Tree    bool // with all clusters below
	// Objects and Bytes are the limits; 0 means none.
	Objects, Bytes int64
}

// A size is an amount of objects and bytes.
type size struct{ objects, bytes int64 }

// trees are the sums of limited clusters with all clusters below them. A sum is made when it
// is needed. After that, only clusters that changed are added again. Without such limits
// there are none.
type trees struct {
	// above returns the cluster and all above it, and whether they are known.
	above func(cluster.Name) ([]cluster.Name, bool)
	sums  map[cluster.Name]*treeSum
	dirty map[cluster.Name]struct{}
}

// A treeSum is the sum of its parts.
type treeSum struct {
	size
	parts   map[cluster.Name]size
	touched time.Time
}

func (t *trees) changed(c cluster.Name) {
	if len(t.sums) > 0 {
		t.dirty[c] = struct{}{}
	}
}

func (t *trees) reset() { t.sums, t.dirty = nil, nil }

// SetAbove sets the function that returns a cluster and all clusters above it, and whether
// these are known. f must be fast; it is called with a lock held.
func (t *Tenants) SetAbove(f func(cluster.Name) ([]cluster.Name, bool)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trees.above = f
}

// Stored returns what is stored within a bound.
func (t *Tenants) Stored(b Bound) (objects, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !b.Tree {
		h, _ := t.now.clusters.Get(b.Cluster)
		return h.objects, h.bytes
	}
	s := t.trees.of(b.Cluster, t.now)
	return s.objects, s.bytes
}

// of returns the sum of a cluster and all below it.
func (t *trees) of(root cluster.Name, all *sums) size {
	if t.sums == nil {
		t.sums, t.dirty = map[cluster.Name]*treeSum{}, map[cluster.Name]struct{}{}
	}
	s := t.sums[root]
	if s == nil {
		s = &treeSum{parts: map[cluster.Name]size{}}
		t.sums[root] = s
		for c := range all.clusters.All() {
			t.dirty[c] = struct{}{}
		}
	}
	s.touched = time.Now()
	for c := range t.dirty {
		if t.settle(c, all) {
			delete(t.dirty, c)
		}
	}
	return s.size
}

// settle adds what a cluster stores to the sums of all trees that it is in. It reports
// whether these are known.
func (t *trees) settle(c cluster.Name, all *sums) bool {
	h, exists := all.clusters.Get(c)
	above, known := t.above(c)
	in := map[cluster.Name]bool{}
	for _, a := range above {
		in[a] = true
	}
	for root, s := range t.sums {
		if time.Since(s.touched) > idleCounter {
			delete(t.sums, root)
			continue
		}
		if !exists {
			s.put(c, size{})
		} else if in[root] {
			s.put(c, size{h.objects, h.bytes})
		}
	}
	return known || !exists
}

func (s *treeSum) put(c cluster.Name, now size) {
	old := s.parts[c]
	s.objects += now.objects - old.objects
	s.bytes += now.bytes - old.bytes
	if now == (size{}) {
		delete(s.parts, c)
		return
	}
	s.parts[c] = now
}
