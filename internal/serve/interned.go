package serve

import (
	"runtime"
	"sync"
	"weak"
)

// interned keeps one of each value, for as long as anybody else does.
type interned[K comparable, V any] struct {
	mu     sync.Mutex
	values map[K]weak.Pointer[V]
}

func newInterned[K comparable, V any]() *interned[K, V] {
	return &interned[K, V]{values: map[K]weak.Pointer[V]{}}
}

// get returns the value of key, which it builds if there is none. Of two who build
// it at the same time, both get the same.
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

// forget drops a value that is gone, unless there is another by now.
func (i *interned[K, V]) forget(key K, gone weak.Pointer[V]) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.values[key] == gone {
		delete(i.values, key)
	}
}
