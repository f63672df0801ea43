package watchcache

import (
	"bytes"
	"container/list"
	"hash/maphash"
	"sync"
)

const (
	// decodedSize limits the decoded objects that are kept, in bytes of their encoded
	// values. A decoded object is about twenty times as large.
	decodedSize = 1 << 20
	// encodedSize limits the encoded objects that are kept, in bytes of memory, including
	// the values they were made from. The garbage collector does not scan them.
	encodedSize = 16 << 20
)

// A memo keeps the results of recent conversions of custom resources, so that each is made
// once for all readers: decoded objects for watches and tables, and JSON for other
// requests. Results are shared and must not be changed, as those of Kubernetes' own caches.
type memo[V any] struct {
	size, largest int // in bytes: of all entries, and of one
	seed          maphash.Seed

	mu      sync.Mutex
	entries map[memoKey]*list.Element
	order   list.List // of *memoEntry[V], the most recently used first
	bytes   int       // of all entries
}

// A memoKey is a schema, a revision and a value. The value is needed: an object that leaves
// the selection of a watch is delivered with its old value and the new revision.
type memoKey struct {
	by       *custom
	revision string
	hash     uint64 // of the value; find compares the value itself
}

// key returns the key of a framed value, which begins with the cluster and the name.
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

// find returns the result for a framed value. It compares the value: with the hash alone,
// one tenant could get another's object.
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

// put keeps the result for a framed value. It counts as the given bytes.
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

// drop removes an entry. The caller holds the lock.
func (m *memo[V]) drop(at *list.Element) {
	old := m.order.Remove(at).(*memoEntry[V])
	delete(m.entries, old.key)
	m.bytes -= old.bytes
}
