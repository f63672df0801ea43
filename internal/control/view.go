package control

import (
	"fmt"
	"slices"
	"sync"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/shrink"
)

// byCluster is the index that every view has. Others are numbered from 1.
const byCluster = 0

// A view holds objects by cluster, namespace and name, and finds them by the
// values of indexes.
//
// Those under one value of an index are a linked list: most values have one or
// two objects, for which a set per value would cost more than the objects'
// pointers, and some have all there are, so that removal must not search.
type view[T Object] struct {
	mu      sync.RWMutex // guards all below, and what it leads to
	entries shrink.Map[Key, *entry[T]]
	indexes []*index[T]
}

type index[T Object] struct {
	name   string
	values func(Key, T) []string
	heads  shrink.Map[string, *link[T]]
}

type entry[T Object] struct {
	key    Key
	object T
	links  [][]link[T] // per index, one per value
}

// A link is the place of an entry under one value of one index. It does not
// move, since others point to it.
type link[T Object] struct {
	value      string
	entry      *entry[T]
	prev, next *link[T]
}

func newView[T Object]() *view[T] {
	return &view[T]{indexes: []*index[T]{{
		name:   "cluster",
		values: func(k Key, _ T) []string { return []string{string(k.Cluster)} },
	}}}
}

// addIndex files the objects that there are, and will be, under their values.
// The function is called locked, so it must not read the view.
func (v *view[T]) addIndex(name string, values func(Key, T) []string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.index(name) >= 0 {
		return fmt.Errorf("index %q exists already; give this one another name", name)
	}
	v.indexes = append(v.indexes, &index[T]{name: name, values: values})
	for _, e := range v.entries.All() {
		v.file(e, len(v.indexes)-1)
	}
	return nil
}

func (v *view[T]) index(name string) int {
	return slices.IndexFunc(v.indexes, func(ix *index[T]) bool { return ix.name == name })
}

func (v *view[T]) get(k Key) (found T, ok bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	e, ok := v.entries.Get(k)
	if ok {
		found = e.object
	}
	return found, ok
}

// list returns the objects of a cluster, or of [cluster.All].
func (v *view[T]) list(c cluster.Name) []T {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if c == cluster.All {
		all := make([]T, 0, v.entries.Len())
		for _, e := range v.entries.All() {
			all = append(all, e.object)
		}
		return all
	}
	var some []T
	first, _ := v.indexes[byCluster].heads.Get(string(c))
	for l := first; l != nil; l = l.next {
		some = append(some, l.entry.object)
	}
	return some
}

// by returns the keys of the objects under a value of an index.
func (v *view[T]) by(name, value string) []Key {
	v.mu.RLock()
	defer v.mu.RUnlock()
	i := v.index(name)
	if i < 0 {
		panic(fmt.Sprintf("control: no index %q; add it before it is used", name)) // a bug, found on first use
	}
	var keys []Key
	first, _ := v.indexes[i].heads.Get(value)
	for l := first; l != nil; l = l.next {
		keys = append(keys, l.entry.key)
	}
	return keys
}

// put stores o and returns what it replaces, if anything.
func (v *view[T]) put(k Key, o T) (old T, replaced bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	e, replaced := v.entries.Get(k)
	if replaced {
		old = e.object
	} else {
		e = &entry[T]{key: k}
		v.entries.Put(k, e)
	}
	e.object = o
	for i := range v.indexes {
		v.file(e, i)
	}
	return old, replaced
}

// drop removes what k names and returns it, if it was there.
func (v *view[T]) drop(k Key) (old T, dropped bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	e, dropped := v.entries.Get(k)
	if !dropped {
		return old, false
	}
	for i := range e.links {
		v.indexes[i].unlink(e.links[i])
	}
	v.entries.Drop(k)
	return e.object, true
}

// except returns the keys of what there is that is not in keep.
func (v *view[T]) except(keep map[Key]T) []Key {
	v.mu.RLock()
	defer v.mu.RUnlock()
	var rest []Key
	for k := range v.entries.All() {
		if _, ok := keep[k]; !ok {
			rest = append(rest, k)
		}
	}
	return rest
}

// file puts e where index i wants it. It moves nothing if it is there already,
// as it is after most changes.
func (v *view[T]) file(e *entry[T], i int) {
	ix := v.indexes[i]
	values := ix.values(e.key, e.object)
	slices.Sort(values)
	values = slices.Compact(values)
	for len(e.links) <= i {
		e.links = append(e.links, nil)
	}
	if slices.EqualFunc(e.links[i], values, func(l link[T], s string) bool { return l.value == s }) {
		return
	}
	ix.unlink(e.links[i])
	e.links[i] = ix.link(e, values)
}

func (ix *index[T]) link(e *entry[T], values []string) []link[T] {
	links := make([]link[T], len(values))
	for i, value := range values {
		l := &links[i]
		l.value, l.entry = value, e
		if l.next, _ = ix.heads.Get(value); l.next != nil {
			l.next.prev = l
		}
		ix.heads.Put(value, l)
	}
	return links
}

func (ix *index[T]) unlink(links []link[T]) {
	for _, l := range links {
		if l.next != nil {
			l.next.prev = l.prev
		}
		switch {
		case l.prev != nil:
			l.prev.next = l.next
		case l.next != nil:
			ix.heads.Put(l.value, l.next)
		default:
			ix.heads.Drop(l.value)
		}
	}
}
