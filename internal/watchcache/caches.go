package watchcache

import (
	"context"
	"sync"

	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/unforked/kcp/internal/store"
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
	client   func() *kubernetes.Client // [store.Store.Client]; set in tests
	direct   *kubernetes.Client        // for requests that no cache serves
	deleters int                       // of a request that deletes a collection
	limits   limits
	decoded  *memo[runtime.Object]
	encoded  *memo[encodedValue]

	customs   *customCaches
	histories *histories // of native resources

	mu      sync.Mutex
	closers []func()

	feedsMu  sync.Mutex
	feeds    map[*feeding]struct{}
	clock    *skipClock
	final    *finalBookmarks
	resumeAt int64 // where the last process ended its watches; 0 if unknown

	closing   chan struct{} // closed by Close
	closeOnce sync.Once
	watches   sync.WaitGroup
}

// New returns the caches of a store, whose feed has not started. The caller calls Close before
// it closes the store.
func New(ctx context.Context, s *store.Store, o Options) (*Caches, error) {
	resumeAt, err := s.Marked(ctx, resumeMark)
	if err != nil {
		return nil, err
	}
	c := &Caches{
		store:    s,
		client:   s.Client,
		direct:   s.Client(),
		deleters: max(1, o.DeleteCollectionWorkers),
		limits:   defaultLimits(),
		decoded:  newMemo[runtime.Object](decodedSize),
		encoded:  newMemo[encodedValue](encodedSize),
		feeds:    map[*feeding]struct{}{},
		clock:    newSkipClock(),
		final:    newFinalBookmarks(),
		resumeAt: resumeAt,
		closing:  make(chan struct{}),
	}
	c.customs, c.histories = newCustomCaches(c), newHistories(c)
	s.OnChange(c.customs.changed)
	s.OnChange(c.histories.changed)
	s.Feed().Share(newReads)
	c.watches.Go(c.histories.look)
	return c, nil
}

// Close stops all caches and watches. Requests must have ended.
func (c *Caches) Close() { c.closeOnce.Do(c.close) }

func (c *Caches) close() {
	close(c.closing)
	c.watches.Wait()
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
