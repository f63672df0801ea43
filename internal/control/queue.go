package control

import (
	"container/heap"
	"time"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/shrink"
)

// A queue decides which key a loop reconciles next. It has no lock, clock or
// goroutine: the caller serializes calls and passes the time.
//
// Keys wait in one lane per cluster, and the queue serves lanes round-robin. The next
// key of a tenant therefore waits for at most one key of each other tenant. A key is in the
// queue once: a key that is added while it waits is merged; one that is added while it
// runs waits again afterwards. Only keys in the queue use memory.
type queue struct {
	share   int // maximum of running keys of one cluster
	items   shrink.Map[Key, *item]
	lanes   shrink.Map[cluster.Name, *lane] // of clusters with waiting or running keys
	next    *lane                           // head of the round-robin list
	last    *lane                           // tail of the round-robin list
	later   delayed
	added   uint64 // number of items ever delayed; orders items of equal time
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
	tries int  // failures in a row; a failed key stays in the queue, so they are kept
	lane  *lane
	next  *item // the next waiting item of the lane

	at    time.Time // when a resting item waits again
	order uint64
	index int // in the heap
}

// A lane holds the waiting keys of one cluster, oldest first.
type lane struct {
	cluster     cluster.Name
	first, last *item
	running     int
	listed      bool // in the round-robin list
	next        *lane
}

// add makes k wait, even if it rests. It returns false if k was merged with an earlier
// call.
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
		// The new run will decide about the next delay, so the current one ends.
		heap.Remove(&q.later, it.index)
	}
	q.wait(it)
	return true
}

// take returns the next item to run, or nil. The caller must call done with it.
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

// done ends the run of an item. The item waits again if it was added meanwhile.
// Otherwise it rests until the given time, or leaves the queue if until is zero.
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

// wake makes the resting items wait that are due at now.
func (q *queue) wake(now time.Time) {
	for len(q.later) > 0 && !q.later[0].at.After(now) {
		q.wait(heap.Pop(&q.later).(*item))
	}
}

// nextWake returns when the first resting item is due, and false if none rests.
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

// list appends l to the round-robin list, if a key of it can run.
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
