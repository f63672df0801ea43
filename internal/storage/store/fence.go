package store

import (
	"context"
	"sync"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/memory/shrink"
	"github.com/unforked/kcp/internal/storage/etcd/outage"
)

// A State is the value of a cluster's fence: it says which writes are allowed. The fence is
// a key that every write of the cluster compares. A cluster without a fence does not exist.
// A change of the fence stops the writes that the new state forbids, in every process at
// once.
type State string

const (
	Gone        State = ""            // no fence: no cluster, no writes
	Active      State = "active"      // all writes
	Terminating State = "terminating" // no creations
	Frozen      State = "frozen"      // no writes
)

// A fence is the state of a cluster's fence key at a revision.
type fence struct {
	rev   int64 // of the fence key; 0 when it is absent
	state State
}

// allows reports whether the state allows a write, or a creation if creates is set.
func (f fence) allows(creates bool) bool {
	return f.state == Active || f.state == Terminating && !creates
}

// fences are the known fences of clusters. They may be older than etcd: a write with an old
// fence fails its compare, and updates the fence.
type fences struct {
	mu    sync.RWMutex
	known shrink.Map[cluster.Name, fence]
	// floor is the newest revision at which a cluster was found deleted. A fence from an
	// older revision may be from before the deletion of its cluster.
	floor int64
}

func newFences() *fences { return &fences{} }

func (f *fences) get(c cluster.Name) (fence, bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.known.Get(c)
}

// learn records the fence of c at revision at. It ignores a fence that is, or may be, older
// than the known one: the next write then reads the fence.
func (f *fences) learn(c cluster.Name, now fence, at int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old, ok := f.known.Get(c)
	switch {
	case ok && old.rev > at || !ok && f.floor > at:
	case now.state == Gone:
		f.known.Drop(c)
		f.floor = max(f.floor, at)
	default:
		f.known.Put(c, now)
	}
}

// forget drops fences written up to revision rev, as changes of them may have been missed.
func (f *fences) forget(rev int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known.DropFunc(func(_ cluster.Name, known fence) bool { return known.rev <= rev })
	f.floor = max(f.floor, rev)
}

// State returns the state of a cluster: [Gone] if it does not exist. It is exact: if this
// process does not know the fence, it reads etcd.
func (s *Store) State(ctx context.Context, c cluster.Name) (State, error) {
	f, err := s.guard.fence(ctx, c)
	if err != nil {
		outage.Note(ctx, err)
	}
	return f.state, err
}
