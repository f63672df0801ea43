package engine

import (
	"errors"
	"fmt"
	"sync"

	"github.com/unforked/kcp"
)

const (
	// mostObjects is the maximum of objects of one target, and mostStatus that of the bytes of a
	// status. The server keeps them in memory, and the owner of the physical cluster decides their number.
	mostObjects = 20_000
	mostStatus  = 16 << 10
	// heavy is the number of bytes of a status that count like another object.
	heavy = 4 << 10
)

// A Bound limits the objects of several targets together.
type Bound struct {
	// Most is the maximum. A list with more objects fails.
	Most int

	mu  sync.Mutex
	all int // guarded by mu
}

// add counts objects, and reports whether there are too many.
func (b *Bound) add(n int) (over bool) {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all += n
	return n > 0 && b.all > b.Most
}

// A tally counts the objects of a target, of all kinds, by the logical cluster that they are from.
type tally struct {
	most  int
	bound *Bound // of further targets too; nil for none

	mu  sync.Mutex
	all int                     // guarded by mu
	of  map[kcp.ClusterName]int // guarded by mu
}

// errTooMany is the error of a list with too many objects.
var errTooMany = errors.New("too many objects")

// A counted is an object that counts.
type counted struct {
	from   kcp.ClusterName
	weight int
}

// set counts an object that was packed, instead of what was counted for it before. It returns an error if there are
// too many, and whether the object was counted before.
func (t *tally) set(h *holding, o *object) (known bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, known := h.take(o)
	now := counted{sourceOf(o), weight(o)}
	if before.from != now.from {
		_ = t.count(h, before.from, -before.weight) // fewer are never too many
		before.weight = 0
	}
	if h.sizes != nil {
		h.sizes[nameOf(o)] = now
	}
	return known, t.count(h, now.from, now.weight-before.weight)
}

// remove takes away what was counted for an object.
func (t *tally) remove(h *holding, o *object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, _ := h.take(o)
	_ = t.count(h, before.from, -before.weight) // fewer are never too many
}

// take forgets what is counted for an object, and returns it. The lock of the tally is held.
func (h *holding) take(o *object) (before counted, known bool) {
	before, known = h.sizes[nameOf(o)]
	delete(h.sizes, nameOf(o))
	return before, known
}

func nameOf(o *object) string { return o.GetNamespace() + "/" + o.GetName() }

// add counts objects of one kind. It returns an error if there are too many.
func (t *tally) add(h *holding, from kcp.ClusterName, n int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count(h, from, n)
}

// count is add with the lock held.
func (t *tally) count(h *holding, from kcp.ClusterName, n int) error {
	if h.from == nil {
		return nil // its watch ends
	}
	t.all += n
	for _, of := range []map[kcp.ClusterName]int{t.of, h.from} {
		if of[from] += n; of[from] == 0 {
			delete(of, from)
		}
	}
	switch over := t.bound.add(n); {
	case n > 0 && t.all > t.most:
		return fmt.Errorf("%w: the physical cluster lists more than %d", errTooMany, t.most)
	case over:
		return fmt.Errorf("%w: the physical clusters of the owner list more than %d together", errTooMany, t.bound.Most)
	}
	return nil
}

// forget takes away what was counted of a kind.
func (t *tally) forget(h *holding) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for from, n := range h.from {
		t.all -= n
		t.bound.add(-n)
		if t.of[from] -= n; t.of[from] == 0 {
			delete(t.of, from)
		}
	}
	clear(h.from)
	clear(h.sizes)
}

// drop is forget for a kind that is not watched any more.
func (t *tally) drop(h *holding) {
	t.forget(h)
	t.mu.Lock()
	defer t.mu.Unlock()
	h.from, h.sizes = nil, nil
}

// takes reports whether the target takes another object of a logical cluster. A tenant has at most as
// many objects as are left for others: one that takes all it can get leaves half of the maximum, the
// next one leaves half of that, and so on.
func (t *tally) takes(of kcp.ClusterName, tenant func(kcp.ClusterName) kcp.ClusterName) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	own, mine := tenant(of), 0
	for from, n := range t.of {
		if tenant(from) == own {
			mine += n
		}
	}
	return mine < t.most-t.all
}

// full says that the target takes no further object of the workspace.
func (j *job) full() string {
	return fmt.Sprintf("the physical cluster takes no more objects of this tenant: it has room for %d, and a tenant has at most as many as it leaves for others", j.holding.counts.most)
}

// room reports whether the target takes another object of the workspace.
func (j *job) room() bool { return j.holding.counts.takes(j.id.Key.Cluster, j.desired.Tenant) }

// sourceOf returns the logical cluster that an object of the physical cluster is from.
func sourceOf(o *object) kcp.ClusterName {
	l, _ := locatorOf(o)
	return kcp.ClusterName(l.Cluster)
}
