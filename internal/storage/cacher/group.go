package cacher

import (
	"context"
	"sync"
	"time"

	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/unforked/kcp/internal/storage/store"
)

// probeEvery is the default of [Group.ProbeEvery].
const probeEvery = 5 * time.Second

// A Group is the watch caches of a store. Methods may be called concurrently.
type Group struct {
	// Client returns the client of one cache. The default is [store.Store.Client].
	Client func() *kubernetes.Client
	// ProbeEvery is the interval of attempts to decrypt values that a cache lacks. The default is
	// five seconds.
	ProbeEvery time.Duration

	store     *store.Store
	resumable func() int64
	clock     *skipClock
	readWait  time.Duration // how long a read waits for a revision that its cache does not have yet

	mu    sync.Mutex
	feeds map[*feeding]struct{}
}

// New returns a group without caches. resumable returns a revision at which new caches begin, so
// that watches can resume there; 0 for the newest.
func New(s *store.Store, resumable func() int64) *Group {
	return &Group{
		Client: s.Client, ProbeEvery: probeEvery,
		store: s, resumable: resumable, clock: newSkipClock(), readWait: readWait, feeds: map[*feeding]struct{}{},
	}
}

// CatchUp returns once all caches have everything up to a revision, or ctx ends.
func (g *Group) CatchUp(ctx context.Context, revision int64) {
	g.mu.Lock()
	var wg sync.WaitGroup
	for f := range g.feeds {
		wg.Go(func() { f.catchUp(ctx, revision) })
	}
	g.mu.Unlock()
	wg.Wait()
}

// Skip puts the clock of the caches forward: they do at once what they would do later, above all send
// bookmarks.
func (g *Group) Skip(d time.Duration) { g.clock.skip(d) }
