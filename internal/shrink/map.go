// Package shrink has a map that gives memory back.
package shrink

import (
	"iter"
	"maps"
)

// A Map is a map that gives memory back: those of the language keep the room that
// they had at their fullest, which after the deletion of ten thousand tenants is most
// of it. The zero Map is empty and ready to use.
type Map[K comparable, V any] struct {
	m    map[K]V
	peak int // the most entries since m was made
}

// Small is a size up to which giving memory back is not worth the work.
const Small = 64

// Get returns the value of k, and whether there is one.
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

// Drop removes k, and reports whether it was there.
func (t *Map[K, V]) Drop(k K) bool {
	before := len(t.m)
	delete(t.m, k)
	t.shrink()
	return len(t.m) < before
}

// DropFunc removes what out says.
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

// Len returns how many entries there are.
func (t *Map[K, V]) Len() int { return len(t.m) }

// All gives the entries, in no order. The map must not change meanwhile.
func (t *Map[K, V]) All() iter.Seq2[K, V] { return maps.All(t.m) }
