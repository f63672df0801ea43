package fair

import (
	"container/heap"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"
)

var (
	errFull    = errors.New("the queue is full")
	errTimeout = errors.New("the request waited too long in the queue")
)

const (
	// long is the maximum time that a light request may compute. A longer request was
	// wrongly classified as light, so its tenant counts as slow.
	long = 25 * time.Millisecond
	// switches is the number of times that a light request waits for a processor, because it
	// runs in several goroutines, one after the other. These waits do not count as computing.
	switches = 20
	// After a long request, a tenant counts as slow for slowFor, or for slowTimes the time of that
	// request if that is longer. A slow tenant computes one light request at a time.
	slowFor   = time.Second
	slowTimes = 2
	// sharedFor is how long a server counts as shared after two tenants took turns.
	sharedFor = time.Second
	// While a server is shared, a tenant with newCommits new commits per seat begins no other request. A commit is new
	// for newFor at most, so that a slow etcd does not limit a tenant to fewer writes than a seat computes.
	newCommits = 2
	newFor     = 2 * time.Millisecond
)

// A scheduler divides seats among the requests of tenants. A request runs while it has a
// seat. Each tenant is one flow of start-time fair queueing: a free seat goes to the waiting
// flow with the lowest virtual time. Flows are charged the time that they used.
type scheduler struct {
	seats    int                  // of all tenants
	limit    int                  // seats of one tenant
	shared   int                  // seats of one tenant while the server is shared; 0 means limit
	maxQueue int                  // waiting requests of one tenant
	delay    func() time.Duration // how long goroutines wait for a processor now; if nil, no tenant counts as slow

	mu    sync.Mutex
	taken int
	now   time.Duration // virtual time of the flow that was served last
	last  string        // tenant that was noted last
	noted time.Time     // when it was
	mixed time.Time     // when another tenant than the one before was noted
	flows map[string]*flow
	ready ready
}

// A flow is the requests of one tenant.
type flow struct {
	virtual time.Duration // virtual time: the flow with the lowest one is served next
	taken   int
	commits int             // new commits
	slow    time.Time       // the tenant counts as slow until then
	queue   []chan struct{} // in order of arrival; closed when the request has a seat
	index   int             // in ready; -1 if the flow is not there
}

func newScheduler(seats, limit, maxQueue int) *scheduler {
	return &scheduler{seats: seats, limit: limit, maxQueue: maxQueue, flows: map[string]*flow{}}
}

// newLimiter returns a scheduler that limits each tenant alone: there are enough seats for
// all tenants together.
func newLimiter(limit, maxQueue int) *scheduler { return newScheduler(math.MaxInt, limit, maxQueue) }

// acquire waits for a seat. The caller must call release once, unless acquire returns an
// error.
func (s *scheduler) acquire(ctx context.Context, tenant string, timeout time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.flow(tenant)
	defer s.forget(tenant, f)
	if len(f.queue) == 0 && s.taken < s.seats && s.allows(f) {
		s.seat(f)
		return nil
	}
	if len(f.queue) >= s.maxQueue {
		return errFull
	}
	granted := make(chan struct{})
	f.queue = append(f.queue, granted)
	s.update(f)
	if s.wait(ctx, granted, timeout) {
		return nil
	}
	f.queue = slices.DeleteFunc(f.queue, func(c chan struct{}) bool { return c == granted })
	s.update(f)
	return errTimeout
}

// force takes a seat without waiting, even if none is free.
func (s *scheduler) force(tenant string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seat(s.flow(tenant))
}

// release frees a seat, and charges the tenant the time for which it was used.
func (s *scheduler) release(tenant string, used time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unseat(tenant, s.flows[tenant], used)
}

// commit counts a new commit of a tenant, which has a seat, until old is called. Further calls have no effect.
func (s *scheduler) commit(tenant string) (old func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.flows[tenant]
	f.commits++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		f.commits--
		s.update(f)
		s.serve()
		s.forget(tenant, f)
	})
}

// note records that a tenant uses the server. If tenants take turns, each has fewer seats.
func (s *scheduler) note(tenant string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.last != tenant && now.Sub(s.noted) < sharedFor {
		s.mixed = now
	}
	s.last, s.noted = tenant, now
}

func (s *scheduler) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken == 0 && len(s.flows) == 0
}

// The caller of the functions below holds the lock.

// wait releases the lock until a request is granted a seat, its timeout passes or ctx ends.
// It reports whether the request has a seat.
func (s *scheduler) wait(ctx context.Context, granted <-chan struct{}, timeout time.Duration) bool {
	s.mu.Unlock()
	timer := time.NewTimer(timeout)
	select {
	case <-granted:
	case <-timer.C:
	case <-ctx.Done():
	}
	timer.Stop()
	s.mu.Lock()
	select {
	case <-granted: // perhaps at the same time as the timeout
		return true
	default:
		return false
	}
}

func (s *scheduler) flow(tenant string) *flow {
	f := s.flows[tenant]
	if f == nil {
		f = &flow{virtual: s.now, index: -1}
		s.flows[tenant] = f
	}
	return f
}

// forget deletes a flow without requests.
func (s *scheduler) forget(tenant string, f *flow) {
	if f.taken == 0 && f.commits == 0 && len(f.queue) == 0 {
		delete(s.flows, tenant)
	}
}

// allows reports whether a flow may take one more seat.
func (s *scheduler) allows(f *flow) bool {
	if f.taken == 0 && f.commits == 0 {
		return true
	}
	now := time.Now()
	if s.shared > 0 && now.Sub(s.mixed) < sharedFor && (f.taken >= s.shared || f.commits >= newCommits*s.shared) {
		return false
	}
	return f.taken == 0 || f.taken < s.limit && (f.slow.IsZero() || now.After(f.slow))
}

func (s *scheduler) seat(f *flow) {
	s.taken++
	f.taken++
}

func (s *scheduler) unseat(tenant string, f *flow, used time.Duration) {
	s.taken--
	f.taken--
	f.virtual += used
	if s.delay != nil && used > long && used > long+switches*s.delay() {
		f.slow = time.Now().Add(max(slowFor, slowTimes*used))
	}
	s.update(f)
	s.serve()
	s.forget(tenant, f)
}

// serve gives free seats to those who wait.
func (s *scheduler) serve() {
	for s.taken < s.seats && len(s.ready) > 0 {
		next := s.ready[0]
		s.now = max(s.now, next.virtual)
		granted := next.queue[0]
		next.queue = next.queue[1:]
		s.seat(next)
		s.update(next)
		close(granted)
	}
}

// update adds a flow to ready or removes it, and restores the heap after a change.
func (s *scheduler) update(f *flow) {
	waits := len(f.queue) > 0 && s.allows(f)
	switch {
	case waits && f.index < 0:
		f.virtual = max(f.virtual, s.now-long) // an idle tenant saves up only a little time
		heap.Push(&s.ready, f)
	case waits:
		heap.Fix(&s.ready, f.index)
	case f.index >= 0:
		heap.Remove(&s.ready, f.index)
	}
}

// ready is a heap of the flows that have waiting requests and may take another seat, by
// virtual time.
type ready []*flow

func (r ready) Len() int           { return len(r) }
func (r ready) Less(i, j int) bool { return r[i].virtual < r[j].virtual }
func (r ready) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].index, r[j].index = i, j
}

func (r *ready) Push(x any) {
	f := x.(*flow)
	f.index = len(*r)
	*r = append(*r, f)
}

func (r *ready) Pop() any {
	last := len(*r) - 1
	f := (*r)[last]
	(*r)[last] = nil
	*r, f.index = (*r)[:last], -1
	return f
}
