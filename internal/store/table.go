package store

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
)

// A Table holds one resource of all clusters in memory, in the form that its user
// needs. It is a follower of the spine: what it says is true up to the revision
// that the spine has applied. Values in it are shared and must not be changed.
type Table[T any] struct {
	resource Resource
	convert  func(runtime.Object) (T, error)

	mu       sync.RWMutex
	rows     map[cluster.Name]map[object]T
	building map[cluster.Name]map[object]T // during a rebuild, else nil
	watchers map[int]func(Key)
	next     int
}

// object names a row within its cluster.
type object struct{ namespace, name string }

// NewTable makes a table that keeps, of each object of a resource, what convert
// makes of it. An object it refuses is left out.
func NewTable[T any](s *Store, r Resource, convert func(runtime.Object) (T, error)) *Table[T] {
	t := &Table[T]{resource: r, convert: convert, rows: map[cluster.Name]map[object]T{}, watchers: map[int]func(Key){}}
	s.spine.Follow(t)
	return t
}

// Get returns the row of an object.
func (t *Table[T]) Get(c cluster.Name, namespace, name string) (T, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	row, ok := t.rows[c][object{namespace, name}]
	return row, ok
}

// List returns the rows of a cluster, or of one of its namespaces if that is not
// empty.
func (t *Table[T]) List(c cluster.Name, namespace string) []T {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var all []T
	for o, row := range t.rows[c] {
		if namespace == "" || o.namespace == namespace {
			all = append(all, row)
		}
	}
	return all
}

// Keys returns the keys of all rows of all clusters.
func (t *Table[T]) Keys() []Key {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var all []Key
	for c, rows := range t.rows {
		for o := range rows {
			all = append(all, Key{t.resource, c, o.namespace, o.name})
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
	t.building = map[cluster.Name]map[object]T{}
}

// Apply implements [Follower].
func (t *Table[T]) Apply(e Event) {
	if e.Key.Resource != t.resource {
		return
	}
	row, ok := t.row(e)
	t.mu.Lock()
	defer t.mu.Unlock()
	to := t.rows
	if t.building != nil {
		to = t.building
	}
	rows, at := to[e.Key.Cluster], object{e.Key.Namespace, e.Key.Name}
	switch {
	case ok && rows == nil:
		to[e.Key.Cluster] = map[object]T{at: row}
	case ok:
		rows[at] = row
	default:
		if delete(rows, at); len(rows) == 0 {
			delete(to, e.Key.Cluster)
		}
	}
	t.tell(e.Key)
}

func (t *Table[T]) row(e Event) (row T, ok bool) {
	if e.Deleted() {
		return row, false
	}
	obj, err := e.Object(context.Background())
	if err == nil {
		row, err = t.converted(obj)
	}
	if err != nil {
		klog.Background().Error(err, "Stored object left out", "key", e.Key.String())
		return row, false
	}
	return row, true
}

// converted is convert, whose panic is an error: a row must not stay as it was
// before an object that its user cannot take in.
func (t *Table[T]) converted(obj runtime.Object) (row T, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return t.convert(obj)
}

// Done implements [Follower].
func (t *Table[T]) Done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.rows
	t.rows, t.building = t.building, nil
	for c, rows := range old {
		for o := range rows {
			if _, still := t.rows[c][o]; !still {
				t.tell(Key{t.resource, c, o.namespace, o.name})
			}
		}
	}
}

func (t *Table[T]) tell(k Key) {
	for _, f := range t.watchers {
		f(k)
	}
}
