package control

import "maps"

// A table is a map that gives memory back: maps keep the room that they had at
// their fullest, which after the deletion of ten thousand tenants is most of it.
type table[K comparable, V any] struct {
	m    map[K]V
	peak int // the most entries since m was made
}

// smallTable is a size below which giving memory back is not worth the work.
const smallTable = 64

func (t *table[K, V]) get(k K) (V, bool) {
	v, ok := t.m[k]
	return v, ok
}

func (t *table[K, V]) put(k K, v V) {
	if t.m == nil {
		t.m = map[K]V{}
	}
	t.m[k] = v
	t.peak = max(t.peak, len(t.m))
}

func (t *table[K, V]) drop(k K) {
	delete(t.m, k)
	if t.peak > smallTable && len(t.m) < t.peak/4 {
		smaller := make(map[K]V, len(t.m))
		maps.Copy(smaller, t.m)
		t.m, t.peak = smaller, len(smaller)
	}
}

func (t *table[K, V]) size() int { return len(t.m) }
