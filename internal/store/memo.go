package store

import (
	"container/list"
	"hash/maphash"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	// memoSize is how much of what was decoded last is kept, in bytes of what it was
	// decoded from. Decoded it is some twenty times as large.
	memoSize = 4 << 20
	// memoLargest is from which size on an object is decoded each time.
	memoLargest = 64 << 10
)

// A memo keeps custom resources as they were decoded last, so that a list or an event
// that many want is decoded once. What it gives is shared, and must not be changed:
// what reads lists and events of Kubernetes' own caches does not do that either.
type memo struct {
	size int // most bytes
	seed maphash.Seed

	mu      sync.Mutex
	entries map[memoKey]*list.Element
	order   list.List // of *memoEntry, the last used first
	bytes   int       // of all entries
}

// A memoKey is what one schema reads at one revision. That alone does not say what it
// is: an object that goes out of what is watched is given as it was, at the revision
// at which it went.
type memoKey struct {
	by       *custom
	revision string
	value    uint64 // hash of the value, which begins with the name
}

func (m *memo) key(by *custom, r *Raw) memoKey {
	return memoKey{by, r.ResourceVersion, maphash.Bytes(m.seed, r.framed)}
}

type memoEntry struct {
	key    memoKey
	object *unstructured.Unstructured
	bytes  int
}

func newMemo(size int) *memo {
	return &memo{size: size, seed: maphash.MakeSeed(), entries: map[memoKey]*list.Element{}}
}

// get returns the object of a key, which decode makes if it is not kept.
func (m *memo) get(key memoKey, bytes int, decode func() (*unstructured.Unstructured, error)) (*unstructured.Unstructured, error) {
	if bytes > memoLargest {
		return decode()
	}
	if o := m.find(key); o != nil {
		return o, nil
	}
	o, err := decode()
	if err == nil {
		m.put(&memoEntry{key, o, bytes})
	}
	return o, err
}

func (m *memo) find(key memoKey) *unstructured.Unstructured {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, ok := m.entries[key]
	if !ok {
		return nil
	}
	m.order.MoveToFront(at)
	return at.Value.(*memoEntry).object
}

func (m *memo) put(e *memoEntry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, others := m.entries[e.key]; others {
		return
	}
	m.entries[e.key] = m.order.PushFront(e)
	for m.bytes += e.bytes; m.bytes > m.size; {
		last := m.order.Remove(m.order.Back()).(*memoEntry)
		delete(m.entries, last.key)
		m.bytes -= last.bytes
	}
}
