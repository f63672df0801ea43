package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/shrink"
)

// A Table holds one resource of all clusters in memory, in the form that its user
// needs. It is a follower of the spine: what it says is true up to the revision
// that the spine has applied. Values in it are shared and must not be changed.
type Table[T any] struct {
	resource Resource
	convert  func(Event) (T, error)

	mu       sync.RWMutex
	rows     *tableRows[T]
	building *tableRows[T] // during a rebuild, else nil
	watchers map[int]func(Key)
	next     int
	index    *index[T] // of rows, nil for none
}

// object names a row within its cluster.
type object struct{ namespace, name string }

func (o object) compare(other object) int {
	return cmp.Or(strings.Compare(o.namespace, other.namespace), strings.Compare(o.name, other.name))
}

// A tableRow is in a sorted slice rather than in a map: most clusters have one or two,
// and there are many clusters.
type tableRow[T any] struct {
	object
	value T
}

// tableRows are the rows of each cluster, sorted by object.
type tableRows[T any] struct {
	shrink.Map[cluster.Name, []tableRow[T]]
}

// of returns the rows of a cluster.
func (t *tableRows[T]) of(c cluster.Name) []tableRow[T] {
	rows, _ := t.Get(c)
	return rows
}

func search[T any](rows []tableRow[T], o object) (int, bool) {
	return slices.BinarySearchFunc(rows, o, func(r tableRow[T], o object) int { return r.compare(o) })
}

// NewTable makes a table that keeps, of each object of a resource, what convert
// makes of it. An object it refuses is left out.
func NewTable[T any](s *Store, r Resource, convert func(runtime.Object) (T, error)) *Table[T] {
	return newTable(s, r, func(e Event) (T, error) {
		obj, err := e.Object(context.Background())
		if err != nil {
			var none T
			return none, err
		}
		return convert(obj)
	})
}

// NewCustomTable makes a table of a custom resource whose objects have the form of
// O. Decoding them as that is several times quicker than as anything.
func NewCustomTable[T, O any](s *Store, r Resource, convert func(*O) (T, error)) *Table[T] {
	return newTable(s, r, func(e Event) (T, error) {
		o := new(O)
		if err := s.unmarshal(context.Background(), e.Key, e.value, o); err != nil {
			var none T
			return none, err
		}
		return convert(o)
	})
}

func newTable[T any](s *Store, r Resource, convert func(Event) (T, error)) *Table[T] {
	t := &Table[T]{resource: r, convert: convert, rows: &tableRows[T]{}, watchers: map[int]func(Key){}}
	s.spine.Follow(t)
	return t
}

// Get returns the row of an object.
func (t *Table[T]) Get(c cluster.Name, namespace, name string) (T, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	rows := t.rows.of(c)
	i, ok := search(rows, object{namespace, name})
	if !ok {
		var none T
		return none, false
	}
	return rows[i].value, true
}

// List returns the rows of a cluster, or of one of its namespaces if that is not
// empty.
func (t *Table[T]) List(c cluster.Name, namespace string) []T {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var all []T
	for _, r := range t.rows.of(c) {
		if namespace == "" || r.namespace == namespace {
			all = append(all, r.value)
		}
	}
	return all
}

// Keys returns the keys of all rows of all clusters.
func (t *Table[T]) Keys() []Key {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var all []Key
	for c, rows := range t.rows.All() {
		for _, r := range rows {
			all = append(all, Key{t.resource, c, r.namespace, r.name})
		}
	}
	return all
}

// Subscribe has f called with the key of every row that changes, until the
// function returned is called. f must not block, nor use the table.
func (t *Table[T]) Subscribe(f func(Key)) (unsubscribe func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := t.next
	t.next++
	t.watchers[id] = f
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.watchers, id)
	}
}

// Reset implements [Follower].
func (t *Table[T]) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.building = &tableRows[T]{}
}

// Apply implements [Follower].
func (t *Table[T]) Apply(e Event) {
	if e.Key.Resource != t.resource {
		return
	}
	value, ok := t.value(e)
	t.mu.Lock()
	defer t.mu.Unlock()
	r := tableRow[T]{object{e.Key.Namespace, e.Key.Name}, value}
	if t.building != nil { // Done tells of it, once it can be seen
		t.building.put(e.Key.Cluster, r, ok)
		return
	}
	if t.index != nil {
		rows := t.rows.of(e.Key.Cluster)
		if i, found := search(rows, r.object); found {
			t.index.drop(e.Key.Cluster, rows[i])
		}
		if ok {
			t.index.add(e.Key.Cluster, r)
		}
	}
	t.rows.put(e.Key.Cluster, r, ok)
	t.tell(e.Key)
}

// put sets a row of cluster c, or removes it.
func (t *tableRows[T]) put(c cluster.Name, r tableRow[T], exists bool) {
	rows := t.of(c)
	i, found := search(rows, r.object)
	switch {
	case exists && found:
		rows[i] = r
	case exists:
		t.Put(c, slices.Insert(rows, i, r))
	case found && len(rows) == 1:
		t.Drop(c)
	case found:
		if rows = slices.Delete(rows, i, i+1); cap(rows) > shrink.Small && len(rows) < cap(rows)/4 {
			rows = slices.Clone(rows) // of its size
		}
		t.Put(c, rows)
	}
}

func (t *Table[T]) value(e Event) (value T, ok bool) {
	if e.Deleted() {
		return value, false
	}
	value, err := t.converted(e)
	if err != nil {
		klog.Background().Error(err, "Stored object left out", "key", e.Key.String())
		return value, false
	}
	return value, true
}

// converted is convert, whose panic is an error: a row must not stay as it was
// before an object that its user cannot take in.
func (t *Table[T]) converted(e Event) (value T, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return t.convert(e)
}

// Done implements [Follower].
func (t *Table[T]) Done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.rows
	t.rows, t.building = t.building, nil
	if t.index != nil {
		t.index.reset()
		for c, rows := range t.rows.All() {
			for _, r := range rows {
				t.index.add(c, r)
			}
		}
	}
	for c, rows := range old.All() {
		for _, r := range rows {
			if _, still := search(t.rows.of(c), r.object); !still {
				t.tell(Key{t.resource, c, r.namespace, r.name})
			}
		}
	}
	if len(t.watchers) == 0 {
		return
	}
	for c, rows := range t.rows.All() { // which of them changed is not known
		for _, r := range rows {
			t.tell(Key{t.resource, c, r.namespace, r.name})
		}
	}
}

func (t *Table[T]) tell(k Key) {
	for _, f := range t.watchers {
		f(k)
	}
}
