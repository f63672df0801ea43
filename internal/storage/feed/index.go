package feed

import (
	"cmp"
	"strings"

	"github.com/google/btree"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
)

// indexDegree is the width of the nodes of an index, as in etcd's own index.
const indexDegree = 32

// An indexEntry says that a row has a value.
type indexEntry struct {
	value   string
	cluster cluster.Name
	object
}

func (e indexEntry) less(other indexEntry) bool {
	return cmp.Or(strings.Compare(e.value, other.value), strings.Compare(string(e.cluster), string(other.cluster)), e.compare(other.object)) < 0
}

// An index finds rows of all clusters by values. A lookup costs as much as it finds.
type index[T any] struct {
	of      func(T) []string
	entries *btree.BTreeG[indexEntry]
}

func (i *index[T]) reset() {
	i.entries = btree.NewG(indexDegree, indexEntry.less)
}

func (i *index[T]) add(c cluster.Name, r tableRow[T]) {
	for _, v := range i.of(r.value) {
		i.entries.ReplaceOrInsert(indexEntry{v, c, r.object})
	}
}

func (i *index[T]) drop(c cluster.Name, r tableRow[T]) {
	for _, v := range i.of(r.value) {
		i.entries.Delete(indexEntry{v, c, r.object})
	}
}

// IndexBy indexes rows by the values that of returns. It must be called before the feed
// starts, and of must be a pure function. It returns t.
func (t *Table[T]) IndexBy(of func(T) []string) *Table[T] {
	t.index = &index[T]{of: of}
	t.index.reset()
	return t
}

// By returns the rows of a cluster that have a value in the index.
func (t *Table[T]) By(value string, c cluster.Name) []T {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var all []T
	t.index.entries.AscendGreaterOrEqual(indexEntry{value: value, cluster: c}, func(e indexEntry) bool {
		if e.value != value || e.cluster != c {
			return false
		}
		if i, ok := search(t.rows.of(c), e.object); ok {
			all = append(all, t.rows.of(c)[i].value)
		}
		return true
	})
	return all
}

// KeysBy returns the keys of all rows that have a value in the index.
func (t *Table[T]) KeysBy(value string) []keys.Key {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var all []keys.Key
	t.index.entries.AscendGreaterOrEqual(indexEntry{value: value}, func(e indexEntry) bool {
		if e.value != value {
			return false
		}
		all = append(all, t.resource.Key(e.cluster, e.namespace, e.name))
		return true
	})
	return all
}

// ClustersBy returns the clusters that have rows with a value in the index, in order.
func (t *Table[T]) ClustersBy(value string) []cluster.Name {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var all []cluster.Name
	t.index.entries.AscendGreaterOrEqual(indexEntry{value: value}, func(e indexEntry) bool {
		if e.value != value {
			return false
		}
		if len(all) == 0 || all[len(all)-1] != e.cluster {
			all = append(all, e.cluster)
		}
		return true
	})
	return all
}
