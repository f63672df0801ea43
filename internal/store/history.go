package store

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// changeCost is about what a cache needs to remember a change, beside the values.
const changeCost = 1 << 10 // bytes

const (
	// calm is how many times less changes than did before, when a burst is over: a new
	// cache takes in the changes of the last minutes, too.
	calm = 32
	// calmSweeps is how many sweeps it may take to get so calm.
	calmSweeps = 2
)

// histories know how much the caches of native resources remember of the past, and
// have those replaced that a burst of changes, such as the deletion of many
// workspaces, left full of it.
type histories struct {
	store *Store
	every time.Duration // between sweeps

	mu    sync.Mutex
	of    map[Resource]*history
	at    [2]int64 // newest revision at the last sweep, and at the one before that
	limit int64    // bytes up to which a history is left alone
}

// A history is what happened to a resource, in bytes.
type history struct {
	caches    []*nativeCache
	now, last int64 // since the last sweep, and between that and the one before
	most      int64 // between three sweeps, while the cache is there: it has room for that
	waited    int   // sweeps since little changes, but not as little as could be
}

func newHistories(s *Store) *histories {
	return &histories{store: s, every: s.limits.sweep, of: map[Resource]*history{}, limit: s.limits.history}
}

func (h *histories) add(r Resource, n *nativeCache) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of[r] == nil {
		h.of[r] = &history{}
	}
	h.of[r].caches = append(h.of[r].caches, n)
}

// changed counts a change.
func (h *histories) changed(e Event) {
	if e.Key.Root != Native {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if of := h.of[e.Key.Resource]; of != nil {
		of.now += int64(len(e.value)+len(e.previous)) + changeCost
	}
}

// look sweeps from time to time until the store is closed.
func (h *histories) look() {
	ctx, cancel := context.WithCancel(context.Background())
	var ending sync.WaitGroup
	defer ending.Wait()
	defer cancel()
	ending.Go(func() {
		select {
		case <-h.store.closing:
		case <-h.store.farewell.begun:
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

// sweep replaces the caches that hold more of the past than of the present, now that
// little changes any more, and lets go of what else is remembered from before.
func (h *histories) sweep(ctx context.Context) {
	swollen, from := h.swollen()
	h.store.spine.relay.forget(from)
	for r, caches := range swollen {
		for _, n := range caches {
			if err := n.renew(ctx, from); err != nil && ctx.Err() == nil {
				klog.Background().Error(err, "Watch cache keeps its history", "resource", r.kindPrefix())
			}
		}
	}
}

// swollen returns the caches to replace, and from which revision on they need the
// changes so that watches which were told of their progress can be resumed.
func (h *histories) swollen() (map[Resource][]*nativeCache, int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	swollen, from := map[Resource][]*nativeCache{}, h.at[1]
	for r, of := range h.of {
		recent := of.now + of.last
		of.now, of.last, of.most = 0, of.now, max(of.most, recent)
		if from == 0 || of.most <= h.limit || of.most <= outweighs*recent || of.most <= h.store.spine.ledger.bytes(r) {
			of.waited = 0
			continue
		}
		if of.waited++; of.most > calm*recent || of.waited > calmSweeps {
			swollen[r], of.most, of.waited = of.caches, recent, 0
		}
	}
	h.at[1], h.at[0] = h.at[0], h.store.guard.latest.Load()
	return swollen, from
}
