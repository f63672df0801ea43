package recent

import (
	"runtime"
	"sync"
	"weak"
)

// Interned deduplicates immutable values by key. It holds weak pointers: a value is freed when its
// last user drops it. All methods are safe for concurrent use.
type Interned[K comparable, V any] struct {
	mu     sync.Mutex
	values map[K]weak.Pointer[V]
}

// NewInterned returns an empty set of values.
func NewInterned[K comparable, V any]() *Interned[K, V] {
	return &Interned[K, V]{values: map[K]weak.Pointer[V]{}}
}

// Get returns the value of key, and builds it if it does not exist. Concurrent callers
// may both build, but get the same value.
func (i *Interned[K, V]) Get(key K, build func() (*V, error)) (*V, error) {
	if v := i.find(key); v != nil {
		return v, nil
	}
	fresh, err := build()
	if err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if v := i.values[key].Value(); v != nil {
		return v, nil
	}
	pointer := weak.Make(fresh)
	i.values[key] = pointer
	runtime.AddCleanup(fresh, func(key K) { i.forget(key, pointer) }, key)
	return fresh, nil
}

func (i *Interned[K, V]) find(key K) *V {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.values[key].Value()
}

// forget removes the entry of a freed value, unless key has a new value.
func (i *Interned[K, V]) forget(key K, gone weak.Pointer[V]) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.values[key] == gone {
		delete(i.values, key)
	}
}

// Len returns the number of values.
func (i *Interned[K, V]) Len() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.values)
}
