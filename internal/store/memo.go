package store

import (
	"bytes"
	"container/list"
	"hash/maphash"
	"sync"
)

const (
	// decodedSize is how much of what was decoded last is kept, in bytes of what it was
	// decoded from. Decoded it is some twenty times as large.
	decodedSize = 1 << 20
	// encodedSize is how much is kept of what was encoded last, with the values that it
	// was made of. It costs what it says, and the garbage collector does not look into it.
	encodedSize = 16 << 20
)

// A memo keeps what was made of custom resources last, so that what many want is made
// once: decoded objects for watches and tables, and their JSON for everybody else. What
// it gives is shared, and must not be changed: what reads lists and events of
// Kubernetes' own caches does not do that either.
type memo[V any] struct {
	size, largest int // most bytes, of all and of one
	seed          maphash.Seed

	mu      sync.Mutex
	entries map[memoKey]*list.Element
	order   list.List // of *memoEntry[V], the last used first
	bytes   int       // of all entries
}

// A memoKey is what one schema reads at one revision. That alone does not say what it
// is: an object that goes out of what is watched is given as it was, at the revision
// at which it went.
type memoKey struct {
	by       *custom
	revision string
	hash     uint64 // of the value; whose it is, only the value itself says
}

// key returns the key of what by reads in a framed value, which begins with the
// cluster and the name.
func (m *memo[V]) key(by *custom, revision string, framed []byte) memoKey {
	return memoKey{by, revision, maphash.Bytes(m.seed, framed)}
}

type memoEntry[V any] struct {
	key   memoKey
	of    []byte // the framed value; never changed
	value V
	bytes int
}

func newMemo[V any](size int) *memo[V] {
	return &memo[V]{size: size, largest: size / 64, seed: maphash.MakeSeed(), entries: map[memoKey]*list.Element{}}
}

// find returns what was made of a framed value. Another one of the same hash is not
// taken for it: that would show one tenant what is another's.
func (m *memo[V]) find(key memoKey, framed []byte) (value V, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, ok := m.entries[key]
	if !ok || !bytes.Equal(at.Value.(*memoEntry[V]).of, framed) {
		return value, false
	}
	m.order.MoveToFront(at)
	return at.Value.(*memoEntry[V]).value, true
}

// put keeps what was made of a framed value, in the place of any other of its key. It
// counts as so many bytes.
func (m *memo[V]) put(key memoKey, framed []byte, value V, bytes int) {
	if bytes > m.largest {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if old, ok := m.entries[key]; ok {
		m.drop(old)
	}
	m.entries[key] = m.order.PushFront(&memoEntry[V]{key, framed, value, bytes})
	for m.bytes += bytes; m.bytes > m.size; {
		m.drop(m.order.Back())
	}
}

// drop lets go of an entry. Called locked.
func (m *memo[V]) drop(at *list.Element) {
	old := m.order.Remove(at).(*memoEntry[V])
	delete(m.entries, old.key)
	m.bytes -= old.bytes
}
