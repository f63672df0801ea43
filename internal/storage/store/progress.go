package store

import (
	"context"
	"sync/atomic"
	"time"
)

// currentTimeout limits how long [Progress.Current] waits for the change feed.
const currentTimeout = time.Second

// A Progress has the revision of the newest change of a resource. A client may have seen changes
// after newest, because a read returns a commit before its writer gets an answer, or after its writer
// gave up. The change feed has such changes once it has reached the revision read.
type Progress struct {
	store  *Store
	newest atomic.Int64 // known to be committed by this process or the change feed
	read   atomic.Int64 // of the newest read from etcd
}

// Follow returns the progress of the resource whose keys begin with a prefix. It begins with
// the newest known revision. Only resources with a watch cache need a progress.
func (s *Store) Follow(prefix string) *Progress {
	v, _ := s.guard.committed.LoadOrStore(prefix, &Progress{store: s})
	p := v.(*Progress)
	raise(&p.newest, s.guard.latest.Load()) // after the Store: this load sees a commit that missed the Store
	return p
}

// Unfollow ends Follow.
func (s *Store) Unfollow(prefix string) { s.guard.committed.Delete(prefix) }

// Current returns the newest revision of the resource, for which a consistent list waits. The
// change feed knows it once it has reached the newest read of the resource or, if other
// processes write, the current revision of etcd.
func (p *Progress) Current(ctx context.Context) (int64, error) {
	rev := p.read.Load()
	if p.store.revisions != nil {
		now, _, err := p.store.revisions.Read(ctx)
		if err != nil {
			return 0, err
		}
		rev = max(rev, now)
	}
	if rev > p.newest.Load() && !p.store.feed.Reached(rev) {
		limited, cancel := context.WithTimeout(ctx, currentTimeout)
		defer cancel()
		if p.store.feed.Reach(limited, rev) != nil {
			return rev, ctx.Err() // the cache waits by itself
		}
	}
	return p.newest.Load(), nil
}
