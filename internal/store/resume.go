package store

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/klog/v2"
)

const (
	// bookmarkEvery is how often watches that ask for bookmarks get one.
	bookmarkEvery = time.Minute
	// askAgain is when what did not arrive is asked for again.
	askAgain = 100 * time.Millisecond
	// lookAgain is how often a cache is looked at that is catching up.
	lookAgain = 5 * time.Millisecond
	// maxReplay is how many revisions a cache may be filled short of the newest.
	maxReplay = 10_000
)

// A farewell is how watches end in good order, before the store closes: each that
// asked for bookmarks gets a last one at or after a revision that is remembered.
// The caches of the next process begin at that revision, so that the watches
// resume there as if nothing had happened.
type farewell struct {
	begun chan struct{} // closed when rev is set
	rev   atomic.Int64
	owed  atomic.Int64  // watches that ask for bookmarks
	paid  chan struct{} // gets a value when owed has become 0
}

func newFarewell() *farewell {
	return &farewell{begun: make(chan struct{}), paid: make(chan struct{}, 1)}
}

// owe counts a watch until the function that it returns is called.
func (f *farewell) owe() (pay func()) {
	f.owed.Add(1)
	return func() {
		if f.owed.Add(-1) == 0 {
			select {
			case f.paid <- struct{}{}:
			default:
			}
		}
	}
}

// refuse answers a watch that comes too late. Clients try again, and relist
// nothing.
func (f *farewell) refuse() error {
	select {
	case <-f.begun:
		return apierrors.NewTooManyRequests("the server is stopping; try again", 1)
	default:
		return nil
	}
}

// last reports whether w is the last event of a watch.
func (f *farewell) last(w watch.Event) bool {
	if w.Type != watch.Bookmark {
		return false
	}
	select {
	case <-f.begun:
		return revisionOf(w) >= f.rev.Load()
	default:
		return false
	}
}

func (s *Store) resumeKey() string { return s.prefix + "/" + string(System) + "/resume" }

// EndWatches ends the watches that asked for bookmarks: each gets what happened
// until now and a bookmark from which it can be resumed, in the next process too.
// There are no new ones from then on. It returns once all have ended, or ctx has.
// It must be called once.
func (s *Store) EndWatches(ctx context.Context) {
	rev := s.guard.latest.Load()
	if put, err := s.backend.client.Put(ctx, s.resumeKey(), ""); err == nil {
		rev = put.Header.Revision
		s.guard.saw(rev)
	} else {
		klog.FromContext(ctx).Error(err, "Where watches can be resumed is not remembered; clients will list again")
	}
	s.farewell.rev.Store(rev)
	close(s.farewell.begun)
	for s.farewell.owed.Load() > 0 && ctx.Err() == nil {
		s.catchUp(ctx, rev)
		s.clock.skip(bookmarkEvery)
		again := time.NewTimer(askAgain)
		select {
		case <-s.farewell.paid:
		case <-again.C:
		case <-ctx.Done():
		}
		again.Stop()
	}
}

// catchUp has all sources of watches take in everything up to revision rev.
func (s *Store) catchUp(ctx context.Context, rev int64) {
	// Direct watches: they asked for progress with the context of this kind.
	_ = s.direct.RequestProgress(clientv3.WithRequireLeader(ctx)) // asked again if it fails
	s.feedsMu.Lock()
	var wg sync.WaitGroup
	for f := range s.feeds {
		wg.Go(func() { f.catchUp(ctx, rev) })
	}
	s.feedsMu.Unlock()
	wg.Wait()
}

// resumable returns the revision at which the last process ended its watches, if
// caches can begin there and take in what came after; else 0.
func (s *Store) resumable() int64 {
	if s.guard.latest.Load()-s.resumeAt > maxReplay {
		return 0
	}
	return s.resumeAt
}

// readResume finds out where the last process ended its watches.
func (s *Store) readResume(ctx context.Context) error {
	resp, err := s.backend.client.Get(ctx, s.resumeKey())
	if err != nil {
		return err
	}
	if len(resp.Kvs) > 0 {
		s.resumeAt = resp.Kvs[0].ModRevision
	}
	return nil
}

// watchEtcd watches without a cache.
func (s *Store) watchEtcd(ctx context.Context, etcd storage.Interface, key string, o storage.ListOptions) (watch.Interface, error) {
	o.ProgressNotify = o.Predicate.AllowWatchBookmarks
	return etcd.Watch(ctx, key, o)
}

// seldom passes on bookmarks as often as a cache does: etcd tells its progress more
// often than clients want to know.
func (f *farewell) seldom(convert func(watch.Event) (watch.Event, bool)) func(watch.Event) (watch.Event, bool) {
	last := time.Now()
	return func(e watch.Event) (watch.Event, bool) {
		if e.Type == watch.Bookmark && !f.last(e) && !endsInitial(e) {
			if time.Since(last) < bookmarkEvery {
				return e, false
			}
			last = time.Now()
		}
		return convert(e)
	}
}
