package feed

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
	"github.com/unforked/kcp/internal/memory/shrink"
	"github.com/unforked/kcp/internal/storage/keys"
)

// A Table holds one resource of all clusters in memory, each object converted to a T. It is
// a follower of the feed: it has all changes up to the applied revision. Its values are
// shared: do not change them. Methods may be called concurrently.
type Table[T any] struct {
	resource keys.Resource
	convert  func(Event) (T, error)

	mu       sync.RWMutex
	rows     *tableRows[T]
	building *tableRows[T] // during a rebuild, else nil
	watchers map[int]func(keys.Key)
	next     int
	index    *index[T] // of rows, nil for none
}

// object names a row within its cluster.
type object struct{ namespace, name string }

func (o object) compare(other object) int {
	return cmp.Or(strings.Compare(o.namespace, other.namespace), strings.Compare(o.name, other.name))
}

// A tableRow is in a sorted slice rather than in a map: most clusters have one or two rows,
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

// NewTable returns a table of the objects of a resource, converted by convert. An object
// for which convert returns an error is left out. It must be called before the feed starts.
func NewTable[T any](f *Feed, r keys.Resource, convert func(runtime.Object) (T, error)) *Table[T] {
	return NewEventTable(f, r, func(e Event) (T, error) {
		obj, err := e.Object(context.Background())
		if err != nil {
			var none T
			return none, err
		}
		return convert(obj)
	})
}

// NewCustomTable is NewTable for a custom resource whose objects are decoded into an O,
// which is several times quicker than decoding them into maps.
func NewCustomTable[T, O any](f *Feed, r keys.Resource, convert func(*O) (T, error)) *Table[T] {
	return NewEventTable(f, r, func(e Event) (T, error) {
		o := new(O)
		if err := e.Unmarshal(context.Background(), o); err != nil {
			var none T
			return none, err
		}
		return convert(o)
	})
}

// NewEventTable is NewTable for a conversion of events.
func NewEventTable[T any](f *Feed, r keys.Resource, convert func(Event) (T, error)) *Table[T] {
	t := &Table[T]{resource: r, convert: convert, rows: &tableRows[T]{}, watchers: map[int]func(keys.Key){}}
	f.Follow(t)
	return t
}

// NewTableSince is [NewCustomTable] for rows that have the revision of their last relevant change. A
// write of the status, for example, is not relevant. set sets that revision in a new row. It gets the
// row before the change, nil if there was none, and the revision of the change. After a rebuild of the
// feed, rows have the revision of their objects, which may be later.
func NewTableSince[T, O any](f *Feed, r keys.Resource, convert func(*O) (*T, error), set func(now, before *T, at int64)) *Table[*T] {
	var t *Table[*T]
	t = NewEventTable(f, r, func(e Event) (*T, error) {
		o := new(O)
		if err := e.Unmarshal(context.Background(), o); err != nil {
			return nil, err
		}
		now, err := convert(o)
		if err != nil {
			return nil, err
		}
		var before *T
		if e.Previous != nil {
			before, _ = t.Get(e.Key.Cluster, e.Key.Namespace, e.Key.Name)
		}
		set(now, before, e.Revision)
		return now, nil
	})
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

// List returns the rows of a cluster, or of one namespace unless that is empty.
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
func (t *Table[T]) Keys() []keys.Key {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var all []keys.Key
	for c, rows := range t.rows.All() {
		for _, r := range rows {
			all = append(all, t.resource.Key(c, r.namespace, r.name))
		}
	}
	return all
}

// Subscribe makes the table call f with the key of every row that changes, until
// unsubscribe is called. f must not block, nor use the table: it is locked.
func (t *Table[T]) Subscribe(f func(keys.Key)) (unsubscribe func()) {
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
	if t.building != nil { // Done reports the change, once Get sees it
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
	t.notify(e.Key)
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
			rows = slices.Clone(rows) // to free memory
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

// converted is convert, with a panic as an error: the old row must not stay after a change
// that cannot be converted.
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
				t.notify(t.resource.Key(c, r.namespace, r.name))
			}
		}
	}
	if len(t.watchers) == 0 {
		return
	}
	for c, rows := range t.rows.All() { // any of them may have changed
		for _, r := range rows {
			t.notify(t.resource.Key(c, r.namespace, r.name))
		}
	}
}

func (t *Table[T]) notify(k keys.Key) {
	for _, f := range t.watchers {
		f(k)
	}
}
