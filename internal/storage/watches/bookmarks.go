package watches

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"
)

const (
	// BookmarkEvery is how often watches that ask for bookmarks get one.
	BookmarkEvery = time.Minute
	// progressEvery is how often progress is requested until the final bookmarks are sent.
	progressEvery = 100 * time.Millisecond
	// resumeMark is the mark where the last process ended its watches.
	resumeMark = "resume"
	// maxReplay is the number of revisions before the newest with which a cache may begin.
	maxReplay = 10_000
)

// End ends the watches that asked for bookmarks: each gets all events until now, and a final
// bookmark at or after a revision that etcd stores. It can be resumed there without a list, also in
// the next process, whose caches begin at that revision. Later watches get 429.
//
// End calls catchUp until all have ended or ctx has. catchUp makes the sources of buffered watches
// deliver everything up to a revision, and their next bookmarks. End must be called once.
func (all *Watches) End(ctx context.Context, catchUp func(ctx context.Context, revision int64)) {
	rev, err := all.store.Mark(ctx, resumeMark)
	if err != nil {
		rev = all.store.Latest()
		klog.FromContext(ctx).Error(err, "The revision to resume watches from could not be stored; clients will list again")
	}
	all.last.Store(rev)
	close(all.ending)
	for all.pending.Load() > 0 && ctx.Err() == nil {
		catchUp(ctx, rev)
		again := time.NewTimer(progressEvery)
		select {
		case <-all.ended:
		case <-again.C:
		case <-ctx.Done():
		}
		again.Stop()
	}
}

// Ending returns a channel that is closed when End begins.
func (all *Watches) Ending() <-chan struct{} { return all.ending }

// expect counts a watch that gets a final bookmark until done is called.
func (all *Watches) expect() (done func()) {
	all.pending.Add(1)
	return func() {
		if all.pending.Add(-1) == 0 {
			select {
			case all.ended <- struct{}{}:
			default:
			}
		}
	}
}

// Refuse returns the error for a watch that begins after the final bookmarks. Clients retry it
// without a new list.
func (all *Watches) Refuse() error {
	select {
	case <-all.ending:
		return apierrors.NewTooManyRequests("the server is stopping; try again", 1)
	default:
		return nil
	}
}

// isFinal reports whether e is the final bookmark of a watch.
func (all *Watches) isFinal(e watch.Event) bool {
	if e.Type != watch.Bookmark {
		return false
	}
	select {
	case <-all.ending:
		return revisionOf(e) >= all.last.Load()
	default:
		return false
	}
}

// Resumable returns the revision at which the last process ended its watches, if caches can
// begin there and replay the later changes; else 0.
func (all *Watches) Resumable() int64 {
	if all.store.Latest()-all.resumeAt > maxReplay {
		return 0
	}
	return all.resumeAt
}

// Throttle returns a conversion of events that passes on bookmarks as often as a cache does: etcd
// reports progress more often than clients need it.
func (all *Watches) Throttle(convert func(watch.Event) (watch.Event, bool)) func(watch.Event) (watch.Event, bool) {
	last := time.Now()
	return func(e watch.Event) (watch.Event, bool) {
		if e.Type == watch.Bookmark && !all.isFinal(e) && !endsInitial(e) {
			if time.Since(last) < BookmarkEvery {
				return e, false
			}
			last = time.Now()
		}
		return convert(e)
	}
}
