package watchcache

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
)

// changeCost is about the memory of a change in a cache, without the values.
const changeCost = 1 << 10 // bytes

const (
	// calm is the factor by which changes must decrease for a burst to be over: a new cache
	// also takes in the changes of the last minutes.
	calm = 32
	// calmSweeps is the number of sweeps to wait for that.
	calmSweeps = 2
)

// histories estimate how many former objects the caches of native resources hold. They
// replace caches that a burst of changes filled with former objects, such as the deletion
// of many workspaces.
type histories struct {
	caches *Caches
	every  time.Duration // between sweeps

	mu    sync.Mutex
	of    map[keys.Resource]*history
	at    [2]int64 // newest revision at the last sweep, and at the one before that
	limit int64    // bytes of history below which a cache is never replaced
}

// A history is the size of the changes of a resource, in bytes.
type history struct {
	caches    []*nativeCache
	now, last int64 // since the last sweep, and in the interval before
	most      int64 // the largest sum of two intervals during the life of the cache: it has room for that
	waited    int   // sweeps since the burst was over, but not calm
}

func newHistories(c *Caches) *histories {
	return &histories{caches: c, every: c.limits.sweep, of: map[keys.Resource]*history{}, limit: c.limits.history}
}

func (h *histories) add(r keys.Resource, n *nativeCache) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of[r] == nil {
		h.of[r] = &history{}
	}
	h.of[r].caches = append(h.of[r].caches, n)
}

// changed counts a change.
func (h *histories) changed(e feed.Event) {
	if e.Key.Root != keys.Native {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if of := h.of[e.Key.Resource]; of != nil {
		of.now += int64(len(e.Value)+len(e.Previous)) + changeCost
	}
}

// look sweeps at intervals until ctx ends, or the watches do.
func (h *histories) look(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var ending sync.WaitGroup
	defer ending.Wait()
	defer cancel()
	ending.Go(func() {
		select {
		case <-h.caches.watches.Ending():
		case <-ctx.Done():
		}
		cancel()
	})
	tick := time.NewTicker(h.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			h.sweep(ctx)
		}
	}
}

// sweep replaces the caches that hold more former objects than present ones, once a burst
// is over. It also drops old changes from the feed.
func (h *histories) sweep(ctx context.Context) {
	swollen, from := h.swollen()
	h.caches.store.Feed().Forget(from)
	for r, caches := range swollen {
		for _, n := range caches {
			if err := n.renew(ctx, from); err != nil && ctx.Err() == nil {
				klog.Background().Error(err, "Watch cache keeps its history", "resource", r.KindPrefix())
			}
		}
	}
}

// swollen returns the caches to replace, and the revision from which on they need the
// changes so that watches can be resumed from their last bookmark.
func (h *histories) swollen() (map[keys.Resource][]*nativeCache, int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	swollen, from := map[keys.Resource][]*nativeCache{}, h.at[1]
	for r, of := range h.of {
		recent := of.now + of.last
		of.now, of.last, of.most = 0, of.now, max(of.most, recent)
		if from == 0 || of.most <= h.limit || of.most <= outweighs*recent || of.most <= h.caches.store.Feed().Ledger().Bytes(r) {
			of.waited = 0
			continue
		}
		if of.waited++; of.most > calm*recent || of.waited > calmSweeps {
			swollen[r], of.most, of.waited = of.caches, recent, 0
		}
	}
	h.at[1], h.at[0] = h.at[0], h.caches.store.Latest()
	return swollen, from
}
