package store

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/unforked/kcp/internal/cluster"
)

const (
	// recentChanges and recentBytes bound what a relay remembers. A client lists and
	// then watches from there: what others wrote in between should be at hand, as
	// finding it in etcd's history means to read all that anybody wrote since.
	recentChanges = 4096
	recentBytes   = 4 << 20
)

// A relay passes the changes of custom resources from the spine to those who watch
// them. A watch costs an entry here and a goroutine, a change costs those who
// watch its resource in its cluster, and a resource that nobody watches nothing.
type relay struct {
	applied func() int64 // every change up to it was given to the relay

	mu       sync.Mutex
	live     chan struct{} // closed while changes are passed on
	seen     int64         // revision of the newest change
	floor    int64         // recent has all changes after it
	recent   []Event
	bytes    int // of the values in recent
	watching map[scope]map[*subscription]struct{}
}

// A scope is a resource in one cluster, or in all.
type scope struct {
	Resource
	cluster cluster.Name // or [cluster.All]
}

func newRelay(applied func() int64) *relay {
	return &relay{applied: applied, live: make(chan struct{}), watching: map[scope]map[*subscription]struct{}{}}
}

// reset ends all subscriptions, as the spine lost track of changes.
func (r *relay) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.live:
		r.live = make(chan struct{})
	default:
	}
	for _, all := range r.watching {
		for s := range all {
			s.end()
		}
	}
	clear(r.watching)
	r.recent, r.bytes = nil, 0
}

// begin passes on changes after a revision, which are given from now on.
func (r *relay) begin(rev int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen, r.floor = rev, rev
	close(r.live)
}

// apply passes on a change.
func (r *relay) apply(e Event) {
	if e.Key.Root != Custom {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.live:
	default:
		return // the spine reads what exists
	}
	if e.Revision < r.seen {
		return // the spine lost its watch, and goes on a little earlier
	}
	r.seen = max(r.seen, e.Revision)
	r.remember(e)
	for _, c := range [...]cluster.Name{e.Key.Cluster, cluster.All} {
		for s := range r.watching[scope{e.Key.Resource, c}] {
			s.add(e)
		}
	}
}

func (r *relay) remember(e Event) {
	r.recent = append(r.recent, e)
	r.bytes += len(e.value) + len(e.previous)
	for len(r.recent) > recentChanges || r.bytes > recentBytes {
		old := r.recent[0]
		r.floor = old.Revision
		r.bytes -= len(old.value) + len(old.previous)
		r.recent[0] = Event{}
		r.recent = r.recent[1:]
	}
}

// forget lets go of the changes up to a revision, after which most who listed have long
// begun to watch.
func (r *relay) forget(rev int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, _ := slices.BinarySearchFunc(r.recent, rev+1, func(e Event, rev int64) int { return cmp.Compare(e.Revision, rev) })
	if i == 0 {
		return
	}
	for _, e := range r.recent[:i] {
		r.bytes -= len(e.value) + len(e.previous)
	}
	r.floor = r.recent[i-1].Revision
	r.recent = slices.Clone(r.recent[i:])
}

// subscribe begins to give s the changes after a revision. What is older than what
// the relay remembers s must find elsewhere: all that happened up to the revision
// returned, if it is not 0.
func (r *relay) subscribe(ctx context.Context, s *subscription, after int64) (missed int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		live := r.live
		select {
		case <-live:
		default:
			r.mu.Unlock()
			select {
			case <-live:
			case <-ctx.Done():
				err = ctx.Err()
			}
			if r.mu.Lock(); err != nil {
				return 0, err
			}
			continue
		}
		break
	}
	// Of a revision that is seen, other objects may still come.
	now := max(r.seen, r.applied())
	switch {
	case after >= now:
	case after >= r.floor:
		i, _ := slices.BinarySearchFunc(r.recent, after+1, func(e Event, rev int64) int { return int(e.Revision - rev) })
		for _, e := range r.recent[i:] {
			if s.wants(e.Key) {
				s.pending = append(s.pending, e) // nobody else has s yet
			}
		}
	default:
		missed = now
	}
	all := r.watching[s.scope]
	if all == nil {
		all = map[*subscription]struct{}{}
		r.watching[s.scope] = all
	}
	all[s] = struct{}{}
	return missed, nil
}

// unsubscribe ends what subscribe began.
func (r *relay) unsubscribe(s *subscription) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.watching[s.scope]
	if delete(all, s); len(all) == 0 {
		delete(r.watching, s.scope)
	}
}

// A subscription holds the changes that a watch has not taken yet. One that falls
// behind by more than maxPending ends, so that it holds up nobody.
type subscription struct {
	scope           scope
	namespace, name string        // what to give; empty for all
	exact           bool          // the object without a namespace, if that is empty
	more            chan struct{} // has room for one: something changed

	mu      sync.Mutex
	pending []Event
	ended   bool
}

// newSubscription returns one for the objects at a path below the scope: all of them,
// a namespace, or an object.
func newSubscription(in scope, path string, all bool) *subscription {
	s := &subscription{scope: in, exact: !all, more: make(chan struct{}, 1)}
	if s.namespace = path; s.exact {
		namespace, name, ok := strings.Cut(path, "/")
		if s.namespace, s.name = namespace, name; !ok {
			s.namespace, s.name = "", path
		}
	}
	return s
}

func (s *subscription) wants(k Key) bool {
	if s.scope.cluster != cluster.All && k.Cluster != s.scope.cluster || k.Resource != s.scope.Resource {
		return false
	}
	if s.exact {
		return k.Namespace == s.namespace && k.Name == s.name
	}
	return s.namespace == "" || k.Namespace == s.namespace
}

func (s *subscription) add(e Event) {
	if !s.wants(e.Key) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return
	case len(s.pending) >= maxPending:
		s.ended = true
	default:
		s.pending = append(s.pending, e)
	}
	s.wake()
}

func (s *subscription) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.wake()
}

func (s *subscription) wake() {
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// next takes the first change that waits, if there is one, and tells whether there
// will be none any more.
func (s *subscription) next() (e Event, ok, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pending) == 0 {
		return Event{}, false, s.ended
	}
	e, s.pending[0] = s.pending[0], Event{}
	if s.pending = s.pending[1:]; len(s.pending) == 0 {
		s.pending = nil // what a burst needed is not kept
	}
	return e, true, false
}
