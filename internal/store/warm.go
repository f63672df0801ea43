package store

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/klog/v2"
)

// limits say when a custom resource gets a watch cache, and when it loses it. A
// cache has 17 goroutines.
type limits struct {
	// objects that lists read of a resource from etcd, within a minute, warm it. Each
	// costs a list some 7 µs more than it would from a cache. So below this a cache
	// would save a thousandth of a processor, and take some 50 KB beside what it holds.
	objects int
	// caches there are at most.
	caches int
	// idle is how long a cache lasts that no list reads.
	idle time.Duration
	// history is how many bytes of former objects a cache may hold without a look at
	// how much of it is left: upstream's ring keeps what was deleted until other
	// changes take its place.
	history int64
	// sweep is how often caches are looked at, while there are any.
	sweep time.Duration
	// bookmark is how often a watch tells how far it is.
	bookmark time.Duration
}

func defaultLimits() limits {
	return limits{objects: 10_000, caches: 256, idle: 10 * time.Minute, history: 8 << 20, sweep: time.Minute, bookmark: bookmarkEvery}
}

const (
	// heatFor is how long reads count. A cache that was read within it is in use.
	heatFor = time.Minute
	// listCost is how many objects a list costs that reads none.
	listCost = 10
	// outweighs is how many times its live objects a cache may hold of former ones.
	// Filling it anew then costs less than a quarter of what the changes did.
	outweighs = 4
)

// caches are the watch caches of custom resources. Most resources have none, and
// are listed from etcd. None has watches: those follow the spine.
type caches struct {
	store *Store
	now   func() time.Time
	count *counters

	mu       sync.Mutex
	warm     map[Resource]*raw
	heat     map[Resource]heat // of resources without a cache
	sweepAt  int               // entries in heat
	sweeping bool              // while anything is warm, once Close did not begin
	closed   bool
	closing  chan struct{}  // closed with it
	running  sync.WaitGroup // what sweeps, and what stops a cache
}

// heat is how much lists read of a resource.
type heat struct {
	since   time.Time
	objects int
}

// raw is the cache of one custom resource in all clusters, whatever their schemas.
type raw struct {
	storage.Interface
	stop func()

	users   int // guarded by the lock of the caches, as is what follows
	used    time.Time
	history int64 // bytes of what the cache had, and has no more
}

func newCaches(s *Store) *caches {
	return &caches{store: s, now: time.Now, count: newCounters(), warm: map[Resource]*raw{}, heat: map[Resource]heat{}, sweepAt: 1024, closing: make(chan struct{})}
}

// use returns the cache of r, which stays until done is called, or nil if there is
// none that could answer now.
func (c *caches) use(r Resource) *raw {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.warm[r]
	if w == nil || w.ReadinessCheck() != nil {
		return nil
	}
	w.users++
	return w
}

func (c *caches) done(w *raw) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w.users--
	w.used = c.now()
}

// read counts objects that a list of r read from etcd, and warms r if those are
// many. The list after next, or a later one, finds the cache filled.
func (c *caches) read(r Resource, objects int, cfg *storagebackend.ConfigForResource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if w := c.warm[r]; w != nil {
		w.used = now // it fills
		return
	}
	h := c.heat[r]
	if now.Sub(h.since) > heatFor {
		h = heat{since: now}
	}
	h.objects += objects + listCost
	c.heat[r] = h
	if len(c.heat) > c.sweepAt {
		c.cool(now)
	}
	if h.objects < c.store.limits.objects || c.closed || !c.room(now) {
		return
	}
	delete(c.heat, r)
	w, err := c.start(r, cfg)
	if err != nil {
		klog.Background().Error(err, "Custom resource stays without a watch cache", "resource", r.kindPrefix())
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

// cool drops what nobody read lately.
func (c *caches) cool(now time.Time) {
	for r, h := range c.heat {
		if now.Sub(h.since) > heatFor {
			delete(c.heat, r)
		}
	}
	c.sweepAt = max(1024, 2*len(c.heat))
}

// room reports whether there may be one more cache. If there are as many as may be,
// the one that was not read for the longest time makes room, unless it is in use.
func (c *caches) room(now time.Time) bool {
	if len(c.warm) < c.store.limits.caches {
		return true
	}
	var oldest *raw
	var of Resource
	for r, w := range c.warm {
		if w.users == 0 && now.Sub(w.used) > heatFor && (oldest == nil || w.used.Before(oldest.used)) {
			oldest, of = w, r
		}
	}
	if oldest == nil {
		return false
	}
	c.retire(of)
	return true
}

// retire stops the cache of r, which nobody uses.
func (c *caches) retire(r Resource) {
	w := c.warm[r]
	delete(c.warm, r)
	c.store.guard.unfollow(r.prefix()) // here, as the next cache would share what this one follows
	c.count.cooled()
	c.running.Go(w.stop) // upstream takes a while
}

// start begins to fill a cache.
func (c *caches) start(r Resource, cfg *storagebackend.ConfigForResource) (*raw, error) {
	s := c.store
	feed, err := s.feed(objects{cfg, r.prefix(), rawCodec{s.stamps}, newRaw, newRawList})
	if err != nil {
		return nil, err
	}
	from := s.feeding(feed, r.prefix())
	cached, err := s.newCacher(cfg, cacher.Config{
		Storage: from, ResourcePrefix: r.prefix(), NewFunc: newRaw, NewListFunc: newRawList,
		GetAttrsFunc: rawAttrs, Codec: rawCodec{s.stamps},
	})
	if err != nil {
		feed.Close()
		return nil, err
	}
	d := cacher.NewCacheDelegator(cached, feed)
	return &raw{Interface: d, stop: func() {
		d.Stop()
		from.stop()
		cached.Stop()
		feed.Close()
	}}, nil
}

// changed counts what the cache of a resource keeps of its past.
func (c *caches) changed(e Event) {
	if e.Key.Root != Custom || e.previous == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.warm[e.Key.Resource]; w != nil {
		w.history += int64(len(e.previous))
	}
}

// janitor looks after the caches for as long as there are any.
func (c *caches) janitor() {
	tick := time.NewTicker(c.store.limits.sweep)
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

// sweep retires the caches that are not worth their memory, and reports whether any
// is left.
func (c *caches) sweep() bool {
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
		if w.users == 0 && now.Sub(w.used) >= c.store.limits.idle {
			c.retire(r)
		}
	}
	c.sweeping = len(c.warm) > 0
	return c.sweeping
}

// swollen returns the resources whose caches may hold mostly former objects.
func (c *caches) swollen() []Resource {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []Resource
	for r, w := range c.warm {
		if w.users == 0 && w.history > c.store.limits.history {
			all = append(all, r)
		}
	}
	return all
}

// live returns the bytes of the objects that the cache has.
func (w *raw) live(r Resource) int64 {
	var all RawList
	o := storage.ListOptions{ResourceVersion: "0", Recursive: true, Predicate: storage.Everything}
	if err := w.GetList(context.Background(), r.prefix(), o, &all); err != nil {
		return 0 // it is filled again anyhow
	}
	var n int64
	for i := range all.Items {
		n += int64(len(all.Items[i].framed))
	}
	return n
}

// close stops all caches.
func (c *caches) close() {
	c.mu.Lock()
	c.closed = true
	close(c.closing)
	for r := range c.warm {
		c.retire(r)
	}
	c.mu.Unlock()
	c.running.Wait()
}

type readKey struct{}

// counting returns a context that counts the objects that lists read from etcd.
func counting(ctx context.Context) (context.Context, *int) {
	n := new(int)
	return context.WithValue(ctx, readKey{}, n), n
}

// raws lists custom resources as they are stored: from their cache, if they have
// one, or from etcd.
func (c *custom) raws(ctx context.Context, key string, o storage.ListOptions, into *RawList) error {
	o.Predicate.GetAttrs = rawAttrs
	r, all := c.multi.resource(ctx), c.multi.store.caches
	if w := all.use(r); w != nil {
		defer all.done(w)
		if err := w.GetList(ctx, key, o, into); err == nil || !unready(err) {
			return err
		}
	}
	*into = RawList{}
	if err := grow(ctx, c.multi.store.stored(ctx, r, o)); err != nil {
		return err
	}
	ctx, n := counting(ctx)
	err := c.cold.GetList(ctx, key, o, into)
	all.read(r, *n, c.cfg)
	return err
}

// unready reports whether a cache lost touch with etcd, and reads everything again.
func unready(err error) bool {
	return apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err)
}
