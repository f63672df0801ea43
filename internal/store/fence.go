package store

import (
	"context"
	"sync"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/shrink"
)

// A State says what may be written in a cluster. It is the value of the
// cluster's fence, a key that every write of the cluster compares: without a
// fence the cluster does not exist, and changing it stops, in every process at
// once, the writes that the new state does not allow.
type State string

const (
	Gone        State = ""            // no fence: no cluster, nothing may be written
	Active      State = "active"      // everything may be written
	Terminating State = "terminating" // nothing may be created
	Frozen      State = "frozen"      // nothing may be written
)

func fenceAt(c cluster.Name) Key {
	return Key{Resource: Resource{Root: System, Resource: "fences"}, Cluster: c, Name: "fence"}
}

func fenceKey(c cluster.Name) string { return fenceAt(c).full() }

// fenceOf returns the cluster whose fence is stored at k.
func fenceOf(k Key) (cluster.Name, bool) {
	return k.Cluster, k.Root == System && k.Resource.Resource == "fences" && k.Group == ""
}

// A fence is what a process knows of a cluster's fence key.
type fence struct {
	rev   int64 // of the fence key; 0 when it is absent
	state State
}

// allows reports whether a write may go ahead; creates is true for one that
// makes a new object.
func (f fence) allows(creates bool) bool {
	return f.state == Active || f.state == Terminating && !creates
}

// fences holds what is known of the fences of clusters. It may lag behind etcd:
// a write based on it fails its compare then, and brings it up to date.
type fences struct {
	mu    sync.RWMutex
	known shrink.Map[cluster.Name, fence]
	// floor is the newest revision at which a cluster was seen to be gone. Of a
	// cluster that is not known, older news may be from before its end.
	floor int64
}

func newFences() *fences { return &fences{} }

func (f *fences) get(c cluster.Name) (fence, bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.known.Get(c)
}

// learn records that at revision at the fence of c was as given. Older news
// than what is known is dropped, and so is what may be older: who asks next
// reads the fence.
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

// forget drops all that was learned of fences written up to revision rev, as
// changes of them may have been missed.
func (f *fences) forget(rev int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known.DropFunc(func(_ cluster.Name, known fence) bool { return known.rev <= rev })
	f.floor = max(f.floor, rev)
}

// State returns what may be written in a cluster: [Gone] if there is no such
// cluster. It is exact: when this process knows of no fence, etcd is asked.
func (s *Store) State(ctx context.Context, c cluster.Name) (State, error) {
	f, err := s.guard.fence(ctx, c)
	if err != nil {
		noteOutage(ctx, err)
	}
	return f.state, err
}
