package cacher

import (
	"context"
	"time"

	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/request/fair"
)

const (
	// readWait is the default of [Group]'s readWait, as in upstream's cache.
	readWait = 3 * time.Second
	// firstPoll is the time before the first poll of a cache that lacks a revision: it is usually a
	// millisecond behind.
	firstPoll = 100 * time.Microsecond
	// retryAfter is when a client may ask again for a revision that does not come, in seconds.
	retryAfter = 1
)

// await waits until the cache has everything up to a revision. Upstream's cache would wait itself, but
// with a processor seat: etcd may be slow, and clients may name any revision. If the revision does not
// come in time, the error is that of upstream, which leads a consistent read to etcd.
func (f *feeding) await(ctx context.Context, rev uint64) error {
	at, ok := f.has(rev)
	if ok {
		return nil
	}
	fair.Wait(ctx, func() {
		ctx, cancel := context.WithTimeout(ctx, f.group.readWait)
		defer cancel()
		for pause := firstPoll; !ok && ctx.Err() == nil; pause = min(2*pause, pollEvery) {
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
			}
			at, ok = f.has(rev)
		}
	})
	if !ok {
		return storage.NewTooLargeResourceVersionError(rev, at, retryAfter)
	}
	return nil
}

// has reports whether a read at a revision need not wait, and the revision of the cache. A cache that
// is not ready answers by itself.
func (f *feeding) has(rev uint64) (at uint64, ok bool) {
	if rev == 0 || !f.cache.Ready() {
		return 0, true
	}
	at, err := f.cache.LastSyncResourceVersion()
	return at, err != nil || at >= rev
}

// awaitVersion is await for the resource version of a request.
func (f *feeding) awaitVersion(ctx context.Context, version string) error {
	rev, err := f.group.store.Epoch().ParseResourceVersion(version)
	if err != nil {
		return nil //nolint:nilerr // upstream's cache refuses it
	}
	return f.await(ctx, rev)
}
