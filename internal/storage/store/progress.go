package store

import (
	"context"
	"sync/atomic"
	"time"
)

// currentTimeout limits how long [Progress.Current] waits for the change feed.
const currentTimeout = time.Second

// A Progress has the revision of the newest change of a resource.
//
// The field newest may be too old: a client can read a change from etcd before this process knows
// that it was committed. But the change feed has that change once it has reached the revision of
// the read.
type Progress struct {
	store  *Store
	newest atomic.Int64 // known to be committed by this process or the change feed
	read   atomic.Int64 // of the newest read from etcd
}

// TrackProgress returns the progress of the resource whose keys begin with a prefix. It begins with
// the newest known revision. Only resources with a watch cache need a progress.
func (s *Store) TrackProgress(prefix string) *Progress {
	v, _ := s.guard.committed.LoadOrStore(prefix, &Progress{store: s})
	p := v.(*Progress)
	raise(&p.newest, s.guard.latest.Load()) // after the Store: this load sees a commit that missed the Store
	return p
}

// UntrackProgress ends TrackProgress.
func (s *Store) UntrackProgress(prefix string) { s.guard.committed.Delete(prefix) }

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
