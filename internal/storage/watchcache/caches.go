package watchcache

import (
	"context"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/unforked/kcp/internal/storage/cacher"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/watches"
)

// Options configure the caches of a store.
type Options struct {
	// DeleteCollectionWorkers is the number of parallel deletions of a request that deletes
	// a collection. The default is one.
	DeleteCollectionWorkers int
}

// Caches are the watch caches and the watches of a store. Methods may be called
// concurrently.
type Caches struct {
	store    *store.Store
	direct   *kubernetes.Client // for requests that no cache serves
	deleters int                // of a request that deletes a collection
	limits   limits
	decoded  *memo[runtime.Object]
	encoded  *memo[encodedValue]

	customs   *customCaches
	histories *histories // of native resources

	mu      sync.Mutex
	closers []func()

	cachers     *cacher.Group
	watches     *watches.Watches
	closeOnce   sync.Once
	looking     sync.WaitGroup // at the histories
	stopLooking func()
}

// New returns the caches of a store, whose feed has not started. The caller calls Close before
// it closes the store.
func New(ctx context.Context, s *store.Store, o Options) (*Caches, error) {
	direct := s.Client()
	all, err := watches.New(ctx, s, direct)
	if err != nil {
		_ = direct.Close() // reports only that its context ended
		return nil, err
	}
	c := &Caches{
		store:    s,
		direct:   direct,
		deleters: max(1, o.DeleteCollectionWorkers),
		limits:   defaultLimits(),
		decoded:  newMemo[runtime.Object](decodedSize),
		encoded:  newMemo[encodedValue](encodedSize),
		cachers:  cacher.New(s, all.Resumable),
		watches:  all,
	}
	c.customs, c.histories = newCustomCaches(c), newHistories(c)
	s.OnChange(c.customs.changed)
	s.OnChange(c.histories.changed)
	looking, stop := context.WithCancel(context.Background())
	c.stopLooking = stop
	c.looking.Go(func() { c.histories.look(looking) })
	return c, nil
}

// Close stops all caches and watches. Requests must have ended.
func (c *Caches) Close() { c.closeOnce.Do(c.close) }

func (c *Caches) close() {
	c.stopLooking()
	c.watches.Close()
	c.looking.Wait()
	c.mu.Lock()
	closers := c.closers
	c.closers = nil
	c.mu.Unlock()
	var wg sync.WaitGroup
	for _, stop := range append(closers, c.customs.close) { // upstream's caches take a second each if they just began
		wg.Go(stop)
	}
	wg.Wait()
	_ = c.direct.Close() // reports only that its context ended
}

// onClose registers a function for Close to call.
func (c *Caches) onClose(stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closers = append(c.closers, stop)
}

// EndWatches ends the watches that asked for bookmarks, so that their readers can resume them at
// the next process. See [watches.Watches.End].
func (c *Caches) EndWatches(ctx context.Context) {
	c.watches.End(ctx, func(ctx context.Context, rev int64) {
		// Watches without a cache: a progress request needs a context like theirs.
		_ = c.direct.RequestProgress(clientv3.WithRequireLeader(ctx)) // End repeats it
		c.cachers.CatchUp(ctx, rev)
		c.cachers.Skip(watches.BookmarkEvery)
	})
}
