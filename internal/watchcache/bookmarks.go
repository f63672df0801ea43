package watchcache

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"
)

const (
	// bookmarkEvery is how often watches that ask for bookmarks get one.
	bookmarkEvery = time.Minute
	// progressEvery is how often progress is requested until the final bookmarks are sent.
	progressEvery = 100 * time.Millisecond
	// pollEvery is how often a cache that catches up is polled.
	pollEvery = 5 * time.Millisecond
	// resumeMark is the mark where the last process ended its watches.
	resumeMark = "resume"
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

// EndWatches ends the watches that asked for bookmarks: each gets all events until now and
// a bookmark from which it can be resumed, also in the next process. Later watches get 429.
// It returns once all have ended, or ctx has. It must be called once.
func (c *Caches) EndWatches(ctx context.Context) {
	rev, err := c.store.Mark(ctx, resumeMark)
	if err != nil {
		rev = c.store.Latest()
		klog.FromContext(ctx).Error(err, "The revision to resume watches from could not be stored; clients will list again")
	}
	c.final.rev.Store(rev)
	close(c.final.begun)
	for c.final.pending.Load() > 0 && ctx.Err() == nil {
		c.catchUp(ctx, rev)
		c.clock.skip(bookmarkEvery)
		again := time.NewTimer(progressEvery)
		select {
		case <-c.final.sent:
		case <-again.C:
		case <-ctx.Done():
		}
		again.Stop()
	}
}

// catchUp waits until all sources of watches have everything up to revision rev.
func (c *Caches) catchUp(ctx context.Context, rev int64) {
	// Watches without a cache: a progress request needs a context like theirs.
	_ = c.direct.RequestProgress(clientv3.WithRequireLeader(ctx)) // EndWatches repeats it
	c.feedsMu.Lock()
	var wg sync.WaitGroup
	for f := range c.feeds {
		wg.Go(func() { f.catchUp(ctx, rev) })
	}
	c.feedsMu.Unlock()
	wg.Wait()
}

// resumable returns the revision at which the last process ended its watches, if caches can
// begin there and replay the later changes; else 0.
func (c *Caches) resumable() int64 {
	if c.store.Latest()-c.resumeAt > maxReplay {
		return 0
	}
	return c.resumeAt
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
