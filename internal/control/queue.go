package control

import (
	"container/heap"
	"time"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/shrink"
)

// A queue decides which key a loop works on next. It only decides: it has no
// lock, clock or goroutine, so its owner serialises calls and tells it the time.
//
// Keys wait in one lane per cluster, and lanes take turns, so that the work of
// one tenant waits for at most one key of each other tenant. A key is in the
// queue once: added while it waits it is merged, added while it is worked on it
// waits again afterwards. Memory is held for the keys in the queue alone.
type queue struct {
	share   int // the most keys of one cluster that are worked on at once
	items   shrink.Map[Key, *item]
	lanes   shrink.Map[cluster.Name, *lane] // of clusters with keys that wait or are worked on
	next    *lane                           // whose turn it is
	last    *lane                           // whose turn comes last
	later   delayed
	added   uint64 // counts items delayed, to keep those of one time in order
	waiting int
}

type state uint8

const (
	waiting state = iota
	running
	resting // in the heap until its time comes
)

// An item is a key in the queue.
type item struct {
	key   Key
	state state
	again bool // was added while running
	tries int  // failures in a row; kept here, since a key that failed stays in the queue
	lane  *lane
	next  *item // behind this one in its lane

	at    time.Time // when a resting item waits again
	order uint64
	index int // in the heap
}

// A lane holds the waiting keys of one cluster, oldest first.
type lane struct {
	cluster     cluster.Name
	first, last *item
	running     int
	listed      bool // among the lanes that take turns
	next        *lane
}

// add puts k into the queue, at once even if it rests. It reports whether that
// made work, rather than being merged with an earlier call.
func (q *queue) add(k Key) bool {
	it, ok := q.items.Get(k)
	switch {
	case !ok:
		it = &item{key: k}
		q.items.Put(k, it)
	case it.state == waiting:
		return false
	case it.state == running:
		added := !it.again
		it.again = true
		return added
	default:
		// The outcome of a run decides what is next, and a new run is due, so
		// the rest that the last one asked for is over.
		heap.Remove(&q.later, it.index)
	}
	q.wait(it)
	return true
}

// take returns the next item to work on, or nil. The caller owes a call of done.
func (q *queue) take() *item {
	l := q.next
	if l == nil {
		return nil
	}
	if q.next, l.next = l.next, nil; q.next == nil {
		q.last = nil
	}
	l.listed = false
	it := l.first
	if l.first, it.next = it.next, nil; l.first == nil {
		l.last = nil
	}
	it.state = running
	l.running++
	q.waiting--
	q.list(l)
	return it
}

// done ends the work on an item. It waits again if it was added meanwhile, else
// rests until the given time, or leaves the queue if that is zero.
func (q *queue) done(it *item, until time.Time) {
	l := it.lane
	l.running--
	it.lane = nil
	switch {
	case it.again:
		it.again = false
		q.wait(it)
	case !until.IsZero():
		q.added++
		it.state, it.at, it.order = resting, until, q.added
		heap.Push(&q.later, it)
	default:
		q.items.Drop(it.key)
	}
	if l.running == 0 && l.first == nil {
		q.lanes.Drop(l.cluster)
		return
	}
	q.list(l)
}

// wake lets the items wait whose rest is over.
func (q *queue) wake(now time.Time) {
	for len(q.later) > 0 && !q.later[0].at.After(now) {
		q.wait(heap.Pop(&q.later).(*item))
	}
}

// nextWake returns when wake has something to do, and whether it ever will.
func (q *queue) nextWake() (time.Time, bool) {
	if len(q.later) == 0 {
		return time.Time{}, false
	}
	return q.later[0].at, true
}

func (q *queue) wait(it *item) {
	l, ok := q.lanes.Get(it.key.Cluster)
	if !ok {
		l = &lane{cluster: it.key.Cluster}
		q.lanes.Put(l.cluster, l)
	}
	it.state, it.lane = waiting, l
	if l.last == nil {
		l.first = it
	} else {
		l.last.next = it
	}
	l.last = it
	q.waiting++
	q.list(l)
}

// list gives l a turn, behind all others, if it can use one.
func (q *queue) list(l *lane) {
	if l.listed || l.first == nil || l.running >= q.share {
		return
	}
	l.listed = true
	if q.last == nil {
		q.next = l
	} else {
		q.last.next = l
	}
	q.last = l
}

// delayed is a heap of resting items, the earliest first.
type delayed []*item

func (d delayed) Len() int { return len(d) }

func (d delayed) Less(i, j int) bool {
	if d[i].at.Equal(d[j].at) {
		return d[i].order < d[j].order
	}
	return d[i].at.Before(d[j].at)
}

func (d delayed) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].index, d[j].index = i, j
}

func (d *delayed) Push(x any) {
	it := x.(*item)
	it.index = len(*d)
	*d = append(*d, it)
}

func (d *delayed) Pop() any {
	old := *d
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*d = old[:len(old)-1]
	if cap(old) > shrink.Small && len(*d) < cap(old)/4 {
		*d = append(make(delayed, 0, 2*len(*d)), *d...)
	}
	return it
}
