// Package shrink provides a map that frees memory when entries are removed.
package shrink

import (
	"iter"
	"maps"
)

// A Map frees memory when most of its entries have been removed. A Go map keeps the
// memory of its largest size, for example after ten thousand tenants were deleted.
// The zero Map is empty and ready to use. A Map is not safe for concurrent use.
type Map[K comparable, V any] struct {
	m    map[K]V
	peak int // largest len(m) since m was allocated
}

// Small is the number of entries up to which memory is not worth freeing.
const Small = 64

// Get returns the value of k, and whether k exists.
func (t *Map[K, V]) Get(k K) (V, bool) {
	v, ok := t.m[k]
	return v, ok
}

// Put sets the value of k.
func (t *Map[K, V]) Put(k K, v V) {
	if t.m == nil {
		t.m = map[K]V{}
	}
	t.m[k] = v
	t.peak = max(t.peak, len(t.m))
}

// Drop removes k, and reports whether it existed.
func (t *Map[K, V]) Drop(k K) bool {
	before := len(t.m)
	delete(t.m, k)
	t.shrink()
	return len(t.m) < before
}

// DropFunc removes the entries for which out returns true.
func (t *Map[K, V]) DropFunc(out func(K, V) bool) {
	maps.DeleteFunc(t.m, out)
	t.shrink()
}

func (t *Map[K, V]) shrink() {
	if t.peak > Small && len(t.m) < t.peak/4 {
		smaller := make(map[K]V, len(t.m))
		maps.Copy(smaller, t.m)
		t.m, t.peak = smaller, len(smaller)
	}
}

// Len returns the number of entries.
func (t *Map[K, V]) Len() int { return len(t.m) }

// All iterates over the entries in any order. The map must not change meanwhile.
func (t *Map[K, V]) All() iter.Seq2[K, V] { return maps.All(t.m) }
