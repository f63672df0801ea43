package serve

import (
	"runtime"
	"sync"
	"weak"
)

// interned deduplicates immutable values by key. It holds weak pointers: a value is
// freed when its last user drops it.
type interned[K comparable, V any] struct {
	mu     sync.Mutex
	values map[K]weak.Pointer[V]
}

func newInterned[K comparable, V any]() *interned[K, V] {
	return &interned[K, V]{values: map[K]weak.Pointer[V]{}}
}

// get returns the value of key, and builds it if it does not exist. Concurrent callers
// may both build, but get the same value.
func (i *interned[K, V]) get(key K, build func() (*V, error)) (*V, error) {
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

func (i *interned[K, V]) find(key K) *V {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.values[key].Value()
}

// forget removes the entry of a freed value, unless key has a new value.
func (i *interned[K, V]) forget(key K, gone weak.Pointer[V]) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.values[key] == gone {
		delete(i.values, key)
	}
}
