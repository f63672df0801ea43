package store

import (
	"cmp"
	"slices"
	"sync"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/shrink"
)

// Usage is how much of a resource a cluster stores.
type Usage struct {
	Objects int64
	Bytes   int64 // of the stored values
}

// The Ledger holds exact counts of the objects and bytes of every cluster.
type Ledger struct {
	mu       sync.RWMutex
	now      *shrink.Map[cluster.Name, []entry]
	building *shrink.Map[cluster.Name, []entry] // during a rebuild, else nil
	names    map[Resource]int32                 // index of a resource in list
	list     []Resource
}

// An entry is the usage of one resource. Clusters have few resources each, so a
// slice is smaller than a map, and quick enough to search.
type entry struct {
	resource int32
	objects  int32
	bytes    int64
}

func newLedger() *Ledger {
	return &Ledger{now: &shrink.Map[cluster.Name, []entry]{}, names: map[Resource]int32{}}
}

// Of returns what a cluster stores, by resource.
func (l *Ledger) Of(c cluster.Name) map[Resource]Usage {
	l.mu.RLock()
	defer l.mu.RUnlock()
	entries, _ := l.now.Get(c)
	all := make(map[Resource]Usage, len(entries))
	for _, e := range entries {
		all[l.list[e.resource]] = Usage{Objects: int64(e.objects), Bytes: e.bytes}
	}
	return all
}

// of returns what a cluster stores of a resource.
func (l *Ledger) of(c cluster.Name, r Resource) Usage {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if i, ok := l.names[r]; ok {
		entries, _ := l.now.Get(c)
		for _, e := range entries {
			if e.resource == i {
				return Usage{Objects: int64(e.objects), Bytes: e.bytes}
			}
		}
	}
	return Usage{}
}

// bytes returns how much all clusters store of a resource.
func (l *Ledger) bytes(r Resource) int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var sum int64
	if i, ok := l.names[r]; ok {
		for _, entries := range l.now.All() {
			for _, e := range entries {
				if e.resource == i {
					sum += e.bytes
				}
			}
		}
	}
	return sum
}

// Clusters returns how many clusters store anything.
func (l *Ledger) Clusters() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.now.Len()
}

func (l *Ledger) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.building = &shrink.Map[cluster.Name, []entry]{}
}

func (l *Ledger) swap() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now, l.building = l.building, nil
}

func (l *Ledger) apply(e Event) {
	var objects int32
	switch {
	case e.Deleted():
		objects = -1
	case e.previous == nil:
		objects = 1
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	to := l.now
	if l.building != nil {
		to = l.building
	}
	i, ok := l.names[e.Key.Resource]
	if !ok {
		i = int32(len(l.list))
		l.names[e.Key.Resource] = i
		l.list = append(l.list, e.Key.Resource)
	}
	was, _ := to.Get(e.Key.Cluster)
	is := add(was, entry{i, objects, int64(len(e.value) - len(e.previous))})
	if len(is) == 0 {
		to.Drop(e.Key.Cluster)
		return
	}
	to.Put(e.Key.Cluster, is)
}

// add adds the difference d to entries, and drops the entry when nothing is left.
func add(entries []entry, d entry) []entry {
	for i := range entries {
		if entries[i].resource != d.resource {
			continue
		}
		entries[i].objects += d.objects
		entries[i].bytes += d.bytes
		if entries[i].objects == 0 {
			entries[i] = entries[len(entries)-1]
			entries = entries[:len(entries)-1]
		}
		return entries
	}
	return append(entries, d)
}

// Objects returns how many objects of a resource a cluster stores.
func (l *Ledger) Objects(c cluster.Name, r Resource) int64 { return l.of(c, r).Objects }

// resources returns all that any cluster stores or stored.
func (l *Ledger) resources() []Resource {
	l.mu.RLock()
	defer l.mu.RUnlock()
	all := slices.DeleteFunc(slices.Clone(l.list), func(r Resource) bool { return r.Root == System })
	slices.SortFunc(all, func(a, b Resource) int { return cmp.Compare(a.prefix(), b.prefix()) })
	return all
}
