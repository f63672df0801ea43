package cacher

import (
	"context"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"

	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
)

const (
	// betweenWatches is the least time between the starts of two watches of one cache.
	betweenWatches = time.Second
	// pollEvery is how often a cache that catches up is polled.
	pollEvery = 5 * time.Millisecond
)

// A feeding is the storage that fills a watch cache of all clusters.
type feeding struct {
	*cacheSource
	group    *Group
	progress *store.Progress // of the resource
	cache    *cacher.Cacher  // that it fills
	from     int64           // revision to begin with, if it is not compacted; 0 for that of the last process

	ctx    context.Context // ends with stop
	end    context.CancelFunc
	probes sync.WaitGroup

	mu      sync.Mutex
	watch   *reportingWatch // the present watch; nil before the first
	begun   time.Time       // when it began
	listed  bool            // whether the cache was filled before
	stale   bool            // whether the cache must be filled anew
	stopped bool
}

// A reportingWatch is a watch that reports when its reader has stopped it.
type reportingWatch struct {
	watch.Interface
	done func()
	read chan struct{} // closed once done
}

// Stop implements [watch.Interface].
func (w *reportingWatch) Stop() {
	w.Interface.Stop()
	w.done()
}

func (g *Group) feeding(source *cacheSource, prefix string, from int64) *feeding {
	ctx, end := context.WithCancel(context.Background())
	return &feeding{cacheSource: source, group: g, progress: g.store.TrackProgress(prefix), from: from, ctx: ctx, end: end}
}

// begin records the cache that f fills, once it is made.
func (f *feeding) begin(cache *cacher.Cacher) {
	f.cache = cache
	f.group.mu.Lock()
	defer f.group.mu.Unlock()
	f.group.feeds[f] = struct{}{}
}

// IsWatchListSemanticsUnSupported keeps the cache from filling itself by a watch
// that begins with a list: the reflector collects that in a store keyed by
// namespace and name alone, where objects of one name in several clusters
// overwrite each other.
func (*feeding) IsWatchListSemanticsUnSupported() bool { return true }

// EnableResourceSizeEstimation would keep a map of every key and sweep it.
func (*feeding) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }

// GetCurrentResourceVersion returns the newest revision below the prefix of the cache, once the cache
// has it: a consistent list waits for that. Upstream returns the revision of all of etcd, which a quiet
// cache learns only from a progress notification.
func (f *feeding) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	rev, err := f.progress.Current(ctx)
	if err == nil {
		err = f.await(ctx, uint64(rev))
	}
	return uint64(rev), err
}

// GetList fills the cache.
func (f *feeding) GetList(ctx context.Context, key string, o storage.ListOptions, list runtime.Object) error {
	if err := f.refuse(); err != nil {
		return err
	}
	f.mu.Lock()
	first := !f.listed
	f.listed, f.stale = true, false
	f.mu.Unlock()
	from := f.from
	if from == 0 {
		from = f.group.resumable()
	}
	if first && from > 0 {
		// As of the revision at which the watches of the last cache ended: the cache and
		// the resumed watches get later changes as events.
		before := o
		before.ResourceVersion, before.ResourceVersionMatch = strconv.FormatInt(from, 10), metav1.ResourceVersionMatchExact
		if err := f.fill(ctx, key, before, list); err == nil {
			return nil
		} // compacted
	}
	return f.fill(ctx, key, o, list)
}

// Watch keeps the cache up to date.
func (f *feeding) Watch(ctx context.Context, key string, o storage.ListOptions) (watch.Interface, error) {
	if err := f.refuse(); err != nil {
		return nil, err
	}
	f.pace(ctx)
	if f.isStale() {
		return nil, apierrors.NewResourceExpired("the cache must be filled anew")
	}
	w, err := f.cacheSource.Watch(values.WithSkip(ctx, f.lost), key, o)
	if err != nil {
		return nil, err
	}
	read := make(chan struct{})
	fresh := &reportingWatch{w, sync.OnceFunc(func() { close(read) }), read}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watch = fresh; f.stopped {
		w.Stop()
	} else if f.unread.filled() {
		f.probes.Go(f.probe)
	}
	return fresh, nil
}

// pace waits until the next watch may begin: while etcd has no leader, every watch fails and
// the reflector begins the next one at once.
func (f *feeding) pace(ctx context.Context) {
	f.mu.Lock()
	wait := betweenWatches - time.Since(f.begun)
	f.begun = time.Now().Add(max(0, wait))
	f.mu.Unlock()
	if wait <= 0 {
		return
	}
	pause := time.NewTimer(wait)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-f.ctx.Done():
	case <-ctx.Done():
	}
}

func (f *feeding) refuse() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.stopped {
		return nil
	}
	return apierrors.NewTooManyRequests("the watch cache is stopping", 1) // the reflector logs nothing
}

// stop ends the watch, and returns once the cache has taken in its events. Upstream's cacher
// waits forever for its reflector if it is stopped while the reflector has more events than
// there is room for.
func (f *feeding) stop() {
	f.group.mu.Lock()
	delete(f.group.feeds, f)
	f.group.mu.Unlock()
	f.mu.Lock()
	f.stopped = true
	w := f.watch
	f.mu.Unlock()
	f.end()
	f.probes.Wait()
	if w != nil {
		w.Interface.Stop()
		<-w.read
	}
}

// catchUp returns once the cache has everything up to revision rev, or ctx ends.
func (f *feeding) catchUp(ctx context.Context, rev int64) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if f.cache.Ready() {
			if at, err := f.cache.LastSyncResourceVersion(); err == nil && int64(at) >= rev {
				return
			}
		}
		f.mu.Lock()
		watching, stopped := f.watch != nil, f.stopped
		f.mu.Unlock()
		if stopped {
			return
		}
		if watching {
			_ = f.RequestWatchProgress(ctx) // repeated at the next tick
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
