package control

import (
	"container/heap"
	"time"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/memory/shrink"
)

// A queue decides which key a loop reconciles next. It has no lock, clock or
// goroutine: the caller serializes calls and passes the time.
//
// Keys wait in one lane per cluster. The queue serves tenants round-robin, and the clusters of
// one tenant, too. The next key of a tenant therefore waits for at most one key of each other
// tenant, however many clusters these have. A key is in the queue once: a key that is added
// while it waits is merged; one that is added while it runs waits again afterwards. Only keys
// in the queue use memory.
type queue struct {
	share    int  // maximum of running keys of one tenant
	byTenant bool // or else each cluster is a tenant

	items   shrink.Map[Key, *item]
	lanes   shrink.Map[cluster.Name, *lane]   // of clusters with waiting or running keys
	tenants shrink.Map[cluster.Name, *tenant] // of these lanes
	fresh   fifo[lane, *lane]                 // lanes without a tenant yet, see place
	next    fifo[tenant, *tenant]             // tenants with a key that can run
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
	cluster cluster.Name
	tenant  *tenant // nil until place
	items   fifo[item, *item]
	running int
	next    *lane
}

// A tenant has one or more lanes. A lane keeps its tenant until it is empty.
type tenant struct {
	name    cluster.Name
	waiting fifo[lane, *lane] // lanes with waiting keys
	lanes   int
	running int
	listed  bool // in queue.next
	next    *tenant
}

// A fifo is a list. Each element has a link to the next one, so it is in one list at a time.
type fifo[T any, P linked[T]] struct{ first, last P }

type linked[T any] interface {
	*T
	link() **T // to the next element
}

func (i *item) link() **item     { return &i.next }
func (l *lane) link() **lane     { return &l.next }
func (t *tenant) link() **tenant { return &t.next }

func (f *fifo[T, P]) push(p P) {
	if f.first == nil {
		f.first = p
	} else {
		*f.last.link() = p
	}
	f.last = p
}

// pop removes and returns the first element. There must be one.
func (f *fifo[T, P]) pop() P {
	p := f.first
	f.first, *p.link() = *p.link(), nil
	if f.first == nil {
		f.last = nil
	}
	return p
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
	if q.next.first == nil {
		return nil
	}
	t := q.next.pop()
	t.listed = false
	l := t.waiting.pop()
	it := l.items.pop()
	if l.items.first != nil {
		t.waiting.push(l)
	}
	it.state = running
	l.running++
	t.running++
	q.waiting--
	q.list(t)
	return it
}

// done ends the run of an item. The item waits again if it was added meanwhile.
// Otherwise it rests until the given time, or leaves the queue if until is zero.
func (q *queue) done(it *item, until time.Time) {
	l := it.lane
	t := l.tenant
	l.running--
	t.running--
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
	if l.running == 0 && l.items.first == nil {
		q.lanes.Drop(l.cluster)
		if t.lanes--; t.lanes == 0 {
			q.tenants.Drop(t.name)
			return
		}
	}
	q.list(t)
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
	first := l.items.first == nil
	l.items.push(it)
	q.waiting++
	switch {
	case l.tenant != nil && first:
		l.tenant.waiting.push(l)
		q.list(l.tenant)
	case ok:
	case q.byTenant:
		q.fresh.push(l)
	default:
		q.join(l, l.cluster)
	}
}

// unplaced returns the clusters whose keys wait for place.
func (q *queue) unplaced() (all []cluster.Name) {
	for l := q.fresh.first; l != nil; l = l.next {
		all = append(all, l.cluster)
	}
	return all
}

// place gives the first lanes of unplaced their tenants.
func (q *queue) place(tenants []cluster.Name) {
	for _, t := range tenants {
		q.join(q.fresh.pop(), t)
	}
}

// join adds a lane with waiting keys to a tenant.
func (q *queue) join(l *lane, name cluster.Name) {
	t, ok := q.tenants.Get(name)
	if !ok {
		t = &tenant{name: name}
		q.tenants.Put(name, t)
	}
	l.tenant = t
	t.lanes++
	t.waiting.push(l)
	q.list(t)
}

// list appends t to the round-robin list, if a key of it can run.
func (q *queue) list(t *tenant) {
	if t.listed || t.waiting.first == nil || t.running >= q.share {
		return
	}
	t.listed = true
	q.next.push(t)
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
