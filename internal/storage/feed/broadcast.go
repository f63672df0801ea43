package feed

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/membership"
)

const (
	// recentChanges and recentBytes limit the history of a broadcaster. A client lists and
	// then watches from the revision of the list. The changes in between should be in
	// memory: a watch of etcd's history reads the changes of all resources.
	recentChanges = 4096
	recentBytes   = 4 << 20
	// MaxPending is the number of events that may wait for the reader of a watch.
	MaxPending = 1000
)

// A broadcaster passes changes to subscriptions. A change costs the subscriptions to its resource
// in its cluster only.
type broadcaster struct {
	applied func() int64 // the applied revision of the feed
	shared  func() any   // see [Feed.Share]; nil for none

	mu       sync.Mutex
	live     chan struct{} // closed while changes are passed on
	seen     int64         // revision of the newest change
	floor    int64         // recent has all changes after it
	recent   []Event
	bytes    int // of the values in recent
	watching map[scope]map[*Subscription]struct{}
}

// A scope is a resource in one cluster, or in all.
type scope struct {
	keys.Resource
	cluster cluster.Name // or [cluster.All]
}

func newBroadcaster(applied func() int64) *broadcaster {
	return &broadcaster{applied: applied, live: make(chan struct{}), watching: map[scope]map[*Subscription]struct{}{}}
}

// reset ends all subscriptions, because the feed missed changes.
func (b *broadcaster) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.live:
		b.live = make(chan struct{})
	default:
	}
	for _, all := range b.watching {
		for s := range all {
			s.end()
		}
	}
	clear(b.watching)
	b.recent, b.bytes = nil, 0
}

// begin starts to pass on changes after a revision.
func (b *broadcaster) begin(rev int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen, b.floor = rev, rev
	close(b.live)
}

// apply passes on a change.
func (b *broadcaster) apply(e Event) {
	if e.Key.Root != keys.Custom && e.Key.Root != keys.Native {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.live:
	default:
		return // the feed reads existing keys
	}
	if e.Revision < b.seen {
		return // the feed lost its watch, and began the next one a little earlier
	}
	b.seen = max(b.seen, e.Revision)
	if b.shared != nil {
		e.Shared = b.shared()
	}
	if remembered(e.Key.Resource) {
		b.remember(e)
	}
	for _, c := range [...]cluster.Name{e.Key.Cluster, cluster.All} {
		for s := range b.watching[scope{e.Key.Resource, c}] {
			s.add(e)
		}
	}
}

// remembered reports whether the history in memory has the changes of a resource. Native
// resources have watch caches for nearly all of their watches.
func remembered(r keys.Resource) bool { return r.Root == keys.Custom }

// remember adds a change to the history, and drops the oldest ones beyond the limits.
func (b *broadcaster) remember(e Event) {
	b.recent = append(b.recent, e)
	b.bytes += len(e.Value) + len(e.Previous)
	for len(b.recent) > recentChanges || b.bytes > recentBytes {
		old := b.recent[0]
		b.floor = old.Revision
		b.bytes -= len(old.Value) + len(old.Previous)
		b.recent[0] = Event{}
		b.recent = b.recent[1:]
	}
}

// Forget drops the changes up to a revision that are kept for subscriptions to come.
func (f *Feed) Forget(rev int64) { f.broadcaster.forget(rev) }

func (b *broadcaster) forget(rev int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i, _ := slices.BinarySearchFunc(b.recent, rev+1, func(e Event, rev int64) int { return cmp.Compare(e.Revision, rev) })
	if i == 0 {
		return
	}
	for _, e := range b.recent[:i] {
		b.bytes -= len(e.Value) + len(e.Previous)
	}
	b.floor = b.recent[i-1].Revision
	b.recent = slices.Clone(b.recent[i:])
}

// Subscribe begins to give s the changes after a revision. It waits while the feed reads
// existing keys. If missed is not 0, the changes up to that revision are older than the
// history in memory: the caller reads them from etcd.
func (f *Feed) Subscribe(ctx context.Context, s *Subscription, after int64) (missed int64, err error) {
	return f.broadcaster.subscribe(ctx, s, after)
}

func (b *broadcaster) subscribe(ctx context.Context, s *Subscription, after int64) (missed int64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		live := b.live
		select {
		case <-live:
		default:
			b.mu.Unlock()
			select {
			case <-live:
			case <-ctx.Done():
				err = ctx.Err()
			}
			if b.mu.Lock(); err != nil {
				return 0, err
			}
			continue
		}
		break
	}
	// More changes of the revision seen may still come.
	now := max(b.seen, b.applied())
	switch {
	case after >= now:
	case after >= b.floor && remembered(s.scope.Resource):
		i, _ := slices.BinarySearchFunc(b.recent, after+1, func(e Event, rev int64) int { return int(e.Revision - rev) })
		for _, e := range b.recent[i:] {
			if s.wants(e.Key) {
				s.pending = append(s.pending, e) // without its lock: nothing else has s yet
			}
		}
	default:
		missed = now
	}
	all := b.watching[s.scope]
	if all == nil {
		all = map[*Subscription]struct{}{}
		b.watching[s.scope] = all
	}
	all[s] = struct{}{}
	return missed, nil
}

// Unsubscribe ends a subscription. It may be called if Subscribe was not, or failed.
func (f *Feed) Unsubscribe(s *Subscription) { f.broadcaster.unsubscribe(s) }

func (b *broadcaster) unsubscribe(s *Subscription) {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.watching[s.scope]
	if delete(all, s); len(all) == 0 {
		delete(b.watching, s.scope)
	}
}

// Subscriptions returns the number of subscriptions.
func (f *Feed) Subscriptions() int {
	f.broadcaster.mu.Lock()
	defer f.broadcaster.mu.Unlock()
	n := 0
	for _, all := range f.broadcaster.watching {
		n += len(all)
	}
	return n
}

// A Subscription holds the changes that a watch has not read yet. If more than
// [MaxPending] wait, it ends, so that a slow reader delays nothing else.
type Subscription struct {
	scope           scope
	namespace, name string          // to select; empty for all
	exact           bool            // select one object, without a namespace if that is empty
	within          *membership.Set // select only clusters that are members; nil for all
	more            chan struct{}   // has room for one value: something changed

	mu      sync.Mutex
	pending []Event
	ended   bool
}

// NewSubscription returns a subscription to a resource in a cluster, or in [cluster.All].
// If all is set, path is a namespace, or empty for all objects; else it is the name of one
// object, behind its namespace and a slash if it has one.
func NewSubscription(r keys.Resource, c cluster.Name, path string, all bool) *Subscription {
	s := &Subscription{scope: scope{r, c}, exact: !all, more: make(chan struct{}, 1)}
	if s.namespace = path; s.exact {
		namespace, name, ok := strings.Cut(path, "/")
		if s.namespace, s.name = namespace, name; !ok {
			s.namespace, s.name = "", path
		}
	}
	return s
}

// Within makes s skip the changes in clusters that were not in a set before the change. Call it
// before Subscribe.
func (s *Subscription) Within(set *membership.Set) { s.within = set }

// wants reports whether the subscription selects a key.
func (s *Subscription) wants(k keys.Key) bool {
	if s.scope.cluster != cluster.All && k.Cluster != s.scope.cluster || k.Resource != s.scope.Resource {
		return false
	}
	if s.exact {
		return k.Namespace == s.namespace && k.Name == s.name
	}
	return s.namespace == "" || k.Namespace == s.namespace
}

// add adds a change, or ends the subscription if too many wait.
func (s *Subscription) add(e Event) {
	if !s.wants(e.Key) || s.within != nil && !s.within.Has(e.Key.Cluster, e.Revision-1) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return
	case len(s.pending) >= MaxPending:
		s.ended = true
	default:
		s.pending = append(s.pending, e)
	}
	s.wake()
}

func (s *Subscription) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.wake()
}

func (s *Subscription) wake() {
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// More returns a channel that gets a value when Next may have something new.
func (s *Subscription) More() <-chan struct{} { return s.more }

// Next removes and returns the first pending change, if there is one. It reports whether
// the subscription has ended and none is left.
func (s *Subscription) Next() (e Event, ok, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pending) == 0 {
		return Event{}, false, s.ended
	}
	e, s.pending[0] = s.pending[0], Event{}
	if s.pending = s.pending[1:]; len(s.pending) == 0 {
		s.pending = nil // free the room that a burst needed
	}
	return e, true, false
}
