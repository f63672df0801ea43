package store

import (
	"time"

	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
)

// openFeed makes the feed, which has a client of its own. now may be nil.
func (s *Store) openFeed(now func() time.Time) {
	s.feedClient = s.backend.Watcher()
	s.feed = feed.New(feed.Options{
		Client: s.feedClient, Prefix: s.prefix, Values: s.values, Tenants: s.guard.tenants, Listener: listener{s},
		Known: s.guard.latest.Load, Revisions: s.revisions, Now: now,
	})
}

// OnChange registers a function that the feed calls with every change of an object, in the
// goroutine of the feed: f must be quick. It must be called before the feed starts.
func (s *Store) OnChange(f func(feed.Event)) { s.changed = append(s.changed, f) }

// A listener passes what the feed receives to the parts of the store that are never
// rebuilt: the guard with its fences, and the functions of [Store.OnChange].
type listener struct{ store *Store }

// Changed implements [feed.Listener].
func (l listener) Changed(e feed.Event, at int64) {
	s := l.store
	s.guard.saw(e.Revision, e.Key.Resource) // whichever process committed it
	if e.Deleted() {
		s.backend.Deleted.Add(1)
	}
	if c, ok := keys.FenceOf(e.Key); ok {
		var now fence
		if !e.Deleted() {
			now = fence{rev: e.Revision, state: State(e.Value)}
		}
		s.guard.fences.learn(c, now, at)
		return
	}
	for _, f := range s.changed {
		f(e)
	}
}

// Reached implements [feed.Listener].
func (l listener) Reached(rev int64) { l.store.guard.saw(rev) }

// Scans implements [feed.Listener].
func (l listener) Scans(rev int64) { l.store.guard.fences.forget(rev) }
