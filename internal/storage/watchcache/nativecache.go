package watchcache

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/cacher"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/registry"
)

// A nativeCache is the storage of a native resource with a watch cache. It replaces the
// cache when that holds mostly former objects: upstream's cache keeps a deleted object
// until other changes take its place, in a quiet server forever.
type nativeCache struct {
	storage.Interface // without the cache
	caches            *Caches
	resource          keys.Resource
	attrs             storage.AttrFunc
	feed              *nativeFeed // for sparse scopes
	// begin starts a cache as of a revision, or as of now if that is 0, and replays the
	// later changes.
	begin func(from int64) (*generation, error)

	mu      sync.Mutex
	now     *generation
	stopped bool
}

// A generation is one cache of a sequence: each replaces the one before.
type generation struct {
	*cacher.Cache
	users sync.WaitGroup // calls in progress, without watches
}

// use returns the present cache, which is not stopped before users.Done.
func (n *nativeCache) use() *generation {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.now.users.Add(1)
	return n.now
}

// ready waits until the cache can serve. Upstream answers 429 while it starts.
func (g *generation) ready(ctx context.Context) error {
	if g.ReadinessCheck() == nil {
		return nil
	}
	if err := g.Wait(ctx); err != nil {
		return starting(err)
	}
	return nil
}

func starting(err error) error {
	return apierrors.NewServiceUnavailable("the watch cache is starting: " + err.Error())
}

// renew replaces the cache by one that has the changes since revision from. The watches of
// the old cache end; watches from a revision after from can be resumed.
func (n *nativeCache) renew(ctx context.Context, from int64) error {
	next, err := n.begin(from)
	if err != nil {
		return err
	}
	if err = next.Wait(ctx); err == nil {
		next.CatchUp(ctx, n.caches.store.Latest()) // no client may read an older state than before
		err = ctx.Err()
	}
	n.mu.Lock()
	if err != nil || n.stopped {
		n.mu.Unlock()
		next.Stop()
		return err
	}
	last := n.now
	n.now = next
	n.mu.Unlock()
	last.users.Wait()
	last.Stop()
	return nil
}

// stop stops the cache without a replacement.
func (n *nativeCache) stop() {
	n.mu.Lock()
	n.stopped = true
	last := n.now
	n.mu.Unlock()
	last.Stop()
}

func (n *nativeCache) Get(ctx context.Context, key string, o storage.GetOptions, out runtime.Object) error {
	g := n.use()
	defer g.users.Done()
	return g.Get(ctx, key, o, out)
}

func (n *nativeCache) GetList(ctx context.Context, key string, o storage.ListOptions, list runtime.Object) error {
	if scope := registry.ScopeOf(ctx); scope != nil {
		return n.feed.list(ctx, scope, o, list)
	}
	g := n.use()
	defer g.users.Done()
	if err := g.ready(ctx); err != nil {
		return err
	}
	return g.GetList(ctx, key, o, list)
}

func (n *nativeCache) Watch(ctx context.Context, key string, o storage.ListOptions) (watch.Interface, error) {
	if registry.ScopeOf(ctx) != nil {
		return n.caches.watches.Follow(ctx, n.feed, key, o)
	}
	if err := n.caches.watches.Refuse(); err != nil {
		return nil, err
	}
	o.Predicate.GetAttrs = n.attrs
	if !cluster.IsAll(ctx) {
		o.Predicate = ofCluster(ctx, o.Predicate)
	}
	w, err := n.watch(ctx, key, o)
	if err != nil {
		return nil, err
	}
	return n.caches.watches.Buffered(w, o.Predicate.AllowWatchBookmarks, n.caches.readable(ctx, n.resource)), nil
}

func (n *nativeCache) watch(ctx context.Context, key string, o storage.ListOptions) (watch.Interface, error) {
	g := n.use()
	defer g.users.Done()
	if err := g.ready(ctx); err != nil {
		return nil, err
	}
	return g.Watch(ctx, key, o)
}

// ofCluster restricts a predicate to the cluster of the request, by the index.
func ofCluster(ctx context.Context, p storage.SelectionPredicate) storage.SelectionPredicate {
	c, _ := cluster.From(ctx)
	p.Field = registry.AndField(p.Field, cacher.ClusterIndex, string(c))
	p.IndexFields = []string{cacher.ClusterIndex}
	return p
}

func (n *nativeCache) Delete(ctx context.Context, key string, out runtime.Object, p *storage.Preconditions, v storage.ValidateObjectFunc, cached runtime.Object, o storage.DeleteOptions) error {
	g := n.use()
	defer g.users.Done()
	return g.Delete(ctx, key, out, p, v, cached, o)
}

func (n *nativeCache) GuaranteedUpdate(ctx context.Context, key string, into runtime.Object, ignoreNotFound bool, p *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object) error {
	g := n.use()
	defer g.users.Done()
	return g.GuaranteedUpdate(ctx, key, into, ignoreNotFound, p, update, cached)
}

func (n *nativeCache) ReadinessCheck() error {
	g := n.use()
	defer g.users.Done()
	return g.ReadinessCheck()
}

func (n *nativeCache) RequestWatchProgress(ctx context.Context) error {
	g := n.use()
	defer g.users.Done()
	return g.RequestWatchProgress(ctx)
}
