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

	"github.com/unforked/kcp/internal/keys"
)

const (
	// bookmarkEvery is how often watches that ask for bookmarks get one.
	bookmarkEvery = time.Minute
	// progressEvery is how often progress is requested until the final bookmarks are sent.
	progressEvery = 100 * time.Millisecond
	// pollEvery is how often a cache that catches up is polled.
	pollEvery = 5 * time.Millisecond
	// maxReplay is the number of revisions before the newest with which a cache may begin.
	maxReplay = 10_000
)

// finalBookmarks end watches before the store closes: each watch that asked for bookmarks
// gets a final one, at or after a revision that etcd stores. The caches of the next process
// begin at that revision, so that the watches resume there without a list.
type finalBookmarks struct {
	begun   chan struct{} // closed when rev is set
	rev     atomic.Int64
	pending atomic.Int64  // watches that ask for bookmarks
	sent    chan struct{} // gets a value when pending becomes 0
}

func newFinalBookmarks() *finalBookmarks {
	return &finalBookmarks{begun: make(chan struct{}), sent: make(chan struct{}, 1)}
}

// expect counts a watch until done is called.
func (f *finalBookmarks) expect() (done func()) {
	f.pending.Add(1)
	return func() {
		if f.pending.Add(-1) == 0 {
			select {
			case f.sent <- struct{}{}:
			default:
			}
		}
	}
}

// refuse returns the error for a watch that begins after the final bookmarks. Clients
// retry it without a new list.
func (f *finalBookmarks) refuse() error {
	select {
	case <-f.begun:
		return apierrors.NewTooManyRequests("the server is stopping; try again", 1)
	default:
		return nil
	}
}

// last reports whether w is the final bookmark of a watch.
func (f *finalBookmarks) last(w watch.Event) bool {
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

func (s *Store) resumeKey() string { return s.prefix + keys.Note("resume") }

// EndWatches ends the watches that asked for bookmarks: each gets all events until now and
// a bookmark from which it can be resumed, also in the next process. Later watches get 429.
// It returns once all have ended, or ctx has. It must be called once.
func (s *Store) EndWatches(ctx context.Context) {
	rev := s.guard.latest.Load()
	if put, err := s.backend.Client.Put(ctx, s.resumeKey(), ""); err == nil {
		rev = put.Header.Revision
		s.guard.saw(rev)
	} else {
		klog.FromContext(ctx).Error(err, "The revision to resume watches from could not be stored; clients will list again")
	}
	s.final.rev.Store(rev)
	close(s.final.begun)
	for s.final.pending.Load() > 0 && ctx.Err() == nil {
		s.catchUp(ctx, rev)
		s.clock.skip(bookmarkEvery)
		again := time.NewTimer(progressEvery)
		select {
		case <-s.final.sent:
		case <-again.C:
		case <-ctx.Done():
		}
		again.Stop()
	}
}

// catchUp waits until all sources of watches have everything up to revision rev.
func (s *Store) catchUp(ctx context.Context, rev int64) {
	// Watches without a cache: a progress request needs a context like theirs.
	_ = s.direct.RequestProgress(clientv3.WithRequireLeader(ctx)) // EndWatches repeats it
	s.feedsMu.Lock()
	var wg sync.WaitGroup
	for f := range s.feeds {
		wg.Go(func() { f.catchUp(ctx, rev) })
	}
	s.feedsMu.Unlock()
	wg.Wait()
}

// resumable returns the revision at which the last process ended its watches, if caches can
// begin there and replay the later changes; else 0.
func (s *Store) resumable() int64 {
	if s.guard.latest.Load()-s.resumeAt > maxReplay {
		return 0
	}
	return s.resumeAt
}

// readResume reads the revision at which the last process ended its watches.
func (s *Store) readResume(ctx context.Context) error {
	resp, err := s.backend.Client.Get(ctx, s.resumeKey())
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

// throttle passes on bookmarks as often as a cache does: etcd reports progress more often
// than clients need it.
func (f *finalBookmarks) throttle(convert func(watch.Event) (watch.Event, bool)) func(watch.Event) (watch.Event, bool) {
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
