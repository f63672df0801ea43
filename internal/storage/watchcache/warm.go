package watchcache

import (
	"context"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/storage/cacher"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/watches"
)

// limits say when a custom resource gets a watch cache, and when it loses the cache. A
// cache has 17 goroutines.
type limits struct {
	// objects is the number of objects that lists may read from etcd within a minute before
	// the resource gets a cache. An object from etcd costs about 7 µs more than one from a
	// cache. Below the limit, a cache would save a thousandth of a processor, and take 50
	// KB without its objects.
	objects int
	// caches is the largest number of caches.
	caches int
	// idle is how long a cache stays without lists.
	idle time.Duration
	// history is the bytes of former objects below which a cache is never checked:
	// upstream's cache keeps a deleted object until other changes take its place.
	history int64
	// sweep is the interval of the checks.
	sweep time.Duration
}

func defaultLimits() limits {
	return limits{objects: 10_000, caches: 256, idle: 10 * time.Minute, history: 8 << 20, sweep: time.Minute}
}

const (
	// countFor is how long reads count. A cache that was read within it is in use.
	countFor = time.Minute
	// listCost is the number of objects that a list itself counts as.
	listCost = 10
	// outweighs is the largest factor between the bytes of former and of live objects in a
	// cache. Filling it again then costs less than a quarter of what the changes cost.
	outweighs = 4
)

// customCaches are the watch caches of custom resources. Most resources have none: their lists
// read etcd. Watches do not use caches, but subscribe to the change feed.
type customCaches struct {
	caches *Caches
	now    func() time.Time
	count  *counters

	mu         sync.Mutex
	warm       map[keys.Resource]*warmCache
	listCounts map[keys.Resource]listCount // of resources without a cache
	sweepAt    int                         // number of listCounts at which old ones are dropped
	sweeping   bool                        // while there is a cache and Close has not begun
	closed     bool
	closing    chan struct{}  // closed by close
	running    sync.WaitGroup // sweeps, and stops of caches
}

// A listCount is the number of objects that lists read of a resource since a time.
type listCount struct {
	since   time.Time
	objects int
}

// A warmCache is the cache of one custom resource in all clusters, for all schemas.
type warmCache struct {
	*cacher.Cache

	users   int // guarded by the lock of the caches, as the fields below
	used    time.Time
	history int64 // bytes of former objects
}

func newCustomCaches(c *Caches) *customCaches {
	return &customCaches{caches: c, now: time.Now, count: newCounters(), warm: map[keys.Resource]*warmCache{}, listCounts: map[keys.Resource]listCount{}, sweepAt: 1024, closing: make(chan struct{})}
}

// use returns the cache of r, which stays until done is called, or nil if no cache can
// answer now.
func (c *customCaches) use(r keys.Resource) *warmCache {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.warm[r]
	if w == nil || w.ReadinessCheck() != nil {
		return nil
	}
	w.users++
	return w
}

func (c *customCaches) done(w *warmCache) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w.users--
	w.used = c.now()
}

// read counts objects that a list of r read from etcd, and starts a cache after many.
func (c *customCaches) read(r keys.Resource, objects int, cfg *storagebackend.ConfigForResource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if w := c.warm[r]; w != nil {
		w.used = now // it is being filled
		return
	}
	h := c.listCounts[r]
	if now.Sub(h.since) > countFor {
		h = listCount{since: now}
	}
	h.objects += objects + listCost
	c.listCounts[r] = h
	if len(c.listCounts) > c.sweepAt {
		c.dropOldCounts(now)
	}
	if h.objects < c.caches.limits.objects || c.closed || !c.room(now) {
		return
	}
	delete(c.listCounts, r)
	w, err := c.start(r, cfg)
	if err != nil {
		klog.Background().Error(err, "Custom resource stays without a watch cache", "resource", r.KindPrefix())
		return
	}
	w.used = now
	c.warm[r] = w
	c.count.warmed()
	if !c.sweeping {
		c.sweeping = true
		c.running.Go(c.janitor)
	}
}

// dropOldCounts drops the counts of resources that were not read lately.
func (c *customCaches) dropOldCounts(now time.Time) {
	for r, h := range c.listCounts {
		if now.Sub(h.since) > countFor {
			delete(c.listCounts, r)
		}
	}
	c.sweepAt = max(1024, 2*len(c.listCounts))
}

// room reports whether there may be another cache. If not, it stops the cache that was not
// read for the longest time, unless that is in use.
func (c *customCaches) room(now time.Time) bool {
	if len(c.warm) < c.caches.limits.caches {
		return true
	}
	var oldest *warmCache
	var of keys.Resource
	for r, w := range c.warm {
		if w.users == 0 && now.Sub(w.used) > countFor && (oldest == nil || w.used.Before(oldest.used)) {
			oldest, of = w, r
		}
	}
	if oldest == nil {
		return false
	}
	c.retire(of)
	return true
}

// retire stops the cache of r, which must not be in use.
func (c *customCaches) retire(r keys.Resource) {
	w := c.warm[r]
	delete(c.warm, r)
	c.caches.store.UntrackProgress(r.Prefix()) // before the next cache of the resource starts
	c.count.cooled()
	c.running.Go(w.Stop) // upstream takes a while
}

// start starts a cache.
func (c *customCaches) start(r keys.Resource, cfg *storagebackend.ConfigForResource) (*warmCache, error) {
	stored := c.caches.stored(cfg, r.Prefix())
	made, err := c.caches.cachers.Start(cacher.Options{Objects: stored, Codec: stored.Codec, Attrs: rawAttrs})
	if err != nil {
		return nil, err
	}
	return &warmCache{Cache: made}, nil
}

// changed counts a former object in the cache of its resource.
func (c *customCaches) changed(e feed.Event) {
	if e.Key.Root != keys.Custom || e.Previous == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.warm[e.Key.Resource]; w != nil {
		w.history += int64(len(e.Previous))
	}
}

// janitor sweeps at intervals while there are caches.
func (c *customCaches) janitor() {
	tick := time.NewTicker(c.caches.limits.sweep)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if !c.sweep() {
				return
			}
		case <-c.closing:
			return
		}
	}
}

// sweep stops the caches that are not worth their memory, and reports whether any is left.
func (c *customCaches) sweep() bool {
	for _, r := range c.swollen() {
		if w := c.use(r); w != nil {
			live := w.live(r)
			c.mu.Lock()
			w.users-- // w.used stays: this was no list
			if w.users == 0 && c.warm[r] == w && w.history > outweighs*live {
				c.retire(r)
			}
			c.mu.Unlock()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	for r, w := range c.warm {
		if w.users == 0 && now.Sub(w.used) >= c.caches.limits.idle {
			c.retire(r)
		}
	}
	c.sweeping = len(c.warm) > 0
	return c.sweeping
}

// swollen returns the resources whose caches may hold mostly former objects.
func (c *customCaches) swollen() []keys.Resource {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []keys.Resource
	for r, w := range c.warm {
		if w.users == 0 && w.history > c.caches.limits.history {
			all = append(all, r)
		}
	}
	return all
}

// live returns the bytes of the objects in the cache.
func (w *warmCache) live(r keys.Resource) int64 {
	var all watches.RawList
	o := storage.ListOptions{ResourceVersion: "0", Recursive: true, Predicate: storage.Everything}
	if err := w.GetList(context.Background(), r.Prefix(), o, &all); err != nil {
		return 0 // the cache fails, and fills itself again
	}
	var n int64
	for i := range all.Items {
		n += int64(len(all.Items[i].Framed))
	}
	return n
}

// close stops all caches.
func (c *customCaches) close() {
	c.mu.Lock()
	c.closed = true
	close(c.closing)
	for r := range c.warm {
		c.retire(r)
	}
	c.mu.Unlock()
	c.running.Wait()
}
