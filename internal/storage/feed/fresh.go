package feed

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/storage/etcd/outage"
)

const (
	// freshTimeout limits the wait of [Feed.Fresh] if other processes write to etcd.
	freshTimeout = time.Second
	// freshTimeoutAlone limits it if none do. The changes are sure to come, however busy
	// the machine is.
	freshTimeoutAlone = 5 * time.Second
	// firstProgress is how long to wait for the answer to a progress request before
	// another one. The server of the watch may be behind another one.
	firstProgress = 2 * time.Millisecond
	// evidenceFor is how long requests may be allowed on data after it was confirmed: a
	// right that another process revoked ends here within that time. The rest of the 100
	// milliseconds that docs/adr/008 promises is for the way of the request.
	evidenceFor = 80 * time.Millisecond
	// refreshAfter is the age of data at which a request starts a confirmation in the
	// background, so that no request waits under load.
	refreshAfter = evidenceFor / 2
	// confirmTimeout limits how long a request waits for a confirmation.
	confirmTimeout = time.Second
)

// Callers choose the wait by the revision that they need:
//
//	WaitFor   one of a key below the prefix, for example of their own write
//	Reach     any revision of etcd
//	Await     any revision that was read from etcd, without a request to etcd if this process alone writes
//	Fresh     the current one, before a refusal; it gives up after a second, or five if this process alone writes
//	CatchUp   the current one, however long it takes
//	Current   one of less than evidenceFor ago, before a permission

// errStuck ends a watch that does not deliver changes that etcd has.
var errStuck = errors.New("the watch does not deliver changes")

// Revision returns the applied revision.
func (f *Feed) Revision() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.applied
}

// Reached reports whether everything up to a revision is applied.
func (f *Feed) Reached(rev int64) bool { return f.Revision() >= rev }

// WaitFor waits until everything up to a revision is applied. The revision must be that of
// a key below the prefix of the feed. It returns the error of ctx if that ends first.
func (f *Feed) WaitFor(ctx context.Context, rev int64) error {
	for {
		f.mu.Lock()
		done, moved := f.applied >= rev, f.moved
		f.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Reach is WaitFor for a revision that may be that of a key outside the prefix: the watch
// learns of such a revision only by a progress request.
func (f *Feed) Reach(ctx context.Context, rev int64) error {
	for wait := firstProgress; ; wait *= 2 {
		if f.Reached(rev) {
			return nil
		}
		limited, cancel := context.WithTimeout(ctx, min(wait, retryAfter))
		err := f.client.RequestProgress(clientv3.WithRequireLeader(limited)) // as the watch
		if err == nil {
			err = f.WaitFor(limited, rev)
		}
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}

// Await waits until everything up to a revision that was read from etcd is applied. If
// other processes write to etcd, the revision may be that of a key outside the prefix.
func (f *Feed) Await(ctx context.Context, rev int64) error {
	if f.revisions == nil {
		return f.WaitFor(ctx, rev)
	}
	return f.Reach(ctx, rev)
}

// Fresh waits until everything is applied that this process knows to be committed and, if
// other processes write to etcd, everything that etcd has now. It reports whether that
// succeeded within the timeout, about a second. If so, the caller decides again: the
// missing change may have been applied. If not, Fresh notes that in the context, see
// [outage.WithNote], so that no refusal is based on what is not known yet.
func (f *Feed) Fresh(ctx context.Context) bool {
	limit := freshTimeout
	if f.revisions == nil {
		limit = freshTimeoutAlone
	}
	var err error
	fair.Wait(ctx, func() { err = f.catchUp(ctx, limit) })
	if err != nil && ctx.Err() == nil {
		if f.revisions == nil {
			err = outage.Unavailable("the server has not yet applied its latest changes, so the request could not be decided; try again")
		}
		outage.Note(ctx, err)
	}
	return err == nil
}

// CatchUp is Fresh for requests that may not be allowed on older data: it waits until ctx
// ends, and returns the error.
func (f *Feed) CatchUp(ctx context.Context) error { return f.catchUp(ctx, 0) }

// catchUp waits at most for the limit after etcd has answered, or without a limit if that
// is 0.
func (f *Feed) catchUp(ctx context.Context, limit time.Duration) error {
	want := f.known()
	var began time.Time
	if f.revisions != nil {
		now, at, err := f.revisions.Read(ctx)
		if err != nil {
			return err
		}
		want, began = max(want, now), at
	}
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	err := f.Await(ctx, want)
	if err == nil && f.revisions != nil {
		f.confirmed.raise(began)
	}
	return err
}

// A confirmation is the time at which everything in etcd is known to be applied.
type confirmation struct {
	at         atomic.Pointer[time.Time]
	refreshing atomic.Bool
}

// raise records that everything that etcd had at began is applied.
func (c *confirmation) raise(began time.Time) {
	for {
		old := c.at.Load()
		if old != nil && !old.Before(began) || c.at.CompareAndSwap(old, &began) {
			return
		}
	}
}

// age returns the time since the last confirmation, by the monotonic or the wall clock,
// whichever is longer: the monotonic clock stops while a machine is suspended, and the
// wall clock may be set. If the wall clock was set back, the age is unknown: it counts as
// an hour.
func (c *confirmation) age(now time.Time) time.Duration {
	const unknown = time.Hour
	at := c.at.Load()
	if at == nil {
		return unknown
	}
	wall := now.Round(0).Sub(at.Round(0))
	if wall < 0 {
		return unknown
	}
	return max(wall, now.Sub(*at))
}

// Current makes sure that a request may be allowed on the applied data: less than
// [evidenceFor] ago, or during this call, etcd had nothing newer. It reports whether it
// waited: then the caller decides again. The error is an API status that says why nothing
// may be allowed now; it is also noted in the context, see [outage.WithNote].
//
// If no other process writes to etcd, it returns at once.
func (f *Feed) Current(ctx context.Context) (waited bool, err error) {
	if f.revisions == nil {
		return false, nil
	}
	switch age := f.confirmed.age(f.now()); {
	case age < refreshAfter:
		return false, nil
	case age < evidenceFor:
		f.refresh()
		return false, nil
	}
	limited, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	if err := f.confirm(limited); err != nil {
		if ctx.Err() == nil {
			err = outage.Unavailable("what decides on the request cannot be confirmed: etcd, the database of the server, does not answer in time; try again")
			outage.Note(ctx, err)
		}
		return true, err
	}
	return true, nil
}

// refresh starts a confirmation in the background, unless one is running.
func (f *Feed) refresh() {
	if !f.confirmed.refreshing.CompareAndSwap(false, true) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() != nil { // Stop waits for the goroutines that began before
		return
	}
	f.wg.Go(func() {
		defer f.confirmed.refreshing.Store(false)
		ctx, cancel := context.WithTimeout(f.ctx, confirmTimeout)
		defer cancel()
		_ = f.confirm(ctx) // after an error the next request waits and returns its own
	})
}

// confirm returns once everything is applied that etcd had when confirm was called.
func (f *Feed) confirm(ctx context.Context) error {
	rev, began, err := f.revisions.Read(ctx)
	if err != nil {
		return err
	}
	before := f.delivered.Load()
	if err := f.Reach(ctx, rev); err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) && before < rev && f.delivered.Load() == before {
			f.abandon() // the etcd server of the watch may hang
		}
		return err
	}
	f.confirmed.raise(began)
	return nil
}

// abandon ends the present watch, so that another one continues from the same revision.
func (f *Feed) abandon() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unwatch != nil {
		f.unwatch(errStuck)
	}
}
