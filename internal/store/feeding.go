package store

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
)

// betweenWatches is at least between the beginnings of two watches that feed a cache.
const betweenWatches = time.Second

// feeding is the storage that a watch cache of all clusters reads.
type feeding struct {
	storage.Interface
	store     *Store
	committed *atomic.Int64  // newest revision under the prefix of the resource
	cache     *cacher.Cacher // that is fed
	from      int64          // revision to begin with, if it is still there; 0 for that of the last process

	ended chan struct{} // closed once stopped

	mu      sync.Mutex
	watch   *fed      // the one that feeds the cache; nil before the first
	begun   time.Time // when that began
	listed  bool      // whether the cache was filled before
	stopped bool
}

// fed is a watch that tells when its reader, who then stops it, is done with it.
type fed struct {
	watch.Interface
	done func()
	read chan struct{} // closed once done
}

// Stop implements [watch.Interface].
func (w *fed) Stop() {
	w.Interface.Stop()
	w.done()
}

func (s *Store) feeding(feed storage.Interface, prefix string) *feeding {
	return &feeding{Interface: feed, store: s, committed: s.guard.follow(prefix), ended: make(chan struct{})}
}

// IsWatchListSemanticsUnSupported keeps the cache from filling itself by a watch
// that begins with a list: the reflector collects that in a store keyed by
// namespace and name alone, where objects of one name in several clusters
// overwrite each other.
func (*feeding) IsWatchListSemanticsUnSupported() bool { return true }

// EnableResourceSizeEstimation would keep a map of every key and sweep it.
func (*feeding) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }

// GetCurrentResourceVersion returns the newest revision under the cache's own
// prefix, which a consistent list waits for. Where nobody else writes to etcd, that
// is what this process last committed there. Where others do, it is known once the
// spine, which follows all prefixes, is as far as etcd. Upstream takes the revision
// of all of etcd, which a quiet cache learns of only by a progress report.
func (f *feeding) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	if f.store.horizon != nil {
		rev, err := f.store.horizon.now(ctx)
		if err != nil {
			return 0, err
		}
		limited, cancel := context.WithTimeout(ctx, freshness)
		defer cancel()
		if f.store.spine.reach(limited, rev) != nil {
			return uint64(rev), ctx.Err() // the cache finds out by itself, if the spine cannot tell
		}
	}
	return uint64(f.committed.Load()), nil
}

// GetList fills the cache.
func (f *feeding) GetList(ctx context.Context, key string, o storage.ListOptions, list runtime.Object) error {
	if err := f.refuse(); err != nil {
		return err
	}
	f.mu.Lock()
	first := !f.listed
	f.listed = true
	f.mu.Unlock()
	from := f.from
	if from == 0 {
		from = f.store.resumable()
	}
	if first && from > 0 {
		// As of where the watches of the last cache ended: this one takes in what
		// came after as events, and so do the watches that are resumed.
		before := o
		before.ResourceVersion, before.ResourceVersionMatch = strconv.FormatInt(from, 10), metav1.ResourceVersionMatchExact
		if err := f.Interface.GetList(ctx, key, before, list); err == nil {
			return nil
		} // compacted since
	}
	return f.Interface.GetList(ctx, key, o, list)
}

// Watch keeps the cache up to date.
func (f *feeding) Watch(ctx context.Context, key string, o storage.ListOptions) (watch.Interface, error) {
	if err := f.refuse(); err != nil {
		return nil, err
	}
	f.calm(ctx)
	w, err := f.Interface.Watch(ctx, key, o)
	if err != nil {
		return nil, err
	}
	read := make(chan struct{})
	fresh := &fed{w, sync.OnceFunc(func() { close(read) }), read}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watch = fresh; f.stopped {
		w.Stop()
	}
	return fresh, nil
}

// calm returns when a watch may begin: the reflector begins the next one at once when one
// fails, over and over while etcd has no leader.
func (f *feeding) calm(ctx context.Context) {
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
	case <-f.ended:
	case <-ctx.Done():
	}
}

func (f *feeding) refuse() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.stopped {
		return nil
	}
	return apierrors.NewTooManyRequests("the watch cache is stopping", 1) // the reflector waits quietly
}

// stop ends the feed, and returns once the cache has taken in all of it. Upstream's
// cacher waits forever for its reflector if it is stopped while the reflector
// has more changes than there is room for.
func (f *feeding) stop() {
	f.store.feedsMu.Lock()
	delete(f.store.feeds, f)
	f.store.feedsMu.Unlock()
	f.mu.Lock()
	if !f.stopped {
		close(f.ended)
	}
	f.stopped = true
	w := f.watch
	f.mu.Unlock()
	if w != nil {
		w.Interface.Stop()
		<-w.read
	}
}

// catchUp returns once the cache has taken in everything up to revision rev, or ctx
// ends.
func (f *feeding) catchUp(ctx context.Context, rev int64) {
	tick := time.NewTicker(lookAgain)
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
			_ = f.RequestWatchProgress(ctx) // asked again if it fails
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
