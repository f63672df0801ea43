package limits

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
)

const (
	// tenure is how long a process that holds quotas can work undisturbed: others wait as
	// long before they take them over. One tenure serves all creations that wait.
	tenure = 20 * time.Millisecond
	// takeovers limits how often one creation takes quotas over.
	takeovers = 50
)

// holders knows which quotas this process holds, and the holder keys that the feed has.
type holders struct {
	of *Quotas

	mu    sync.Mutex
	known map[cluster.Name]*holding
	revs  map[cluster.Name]int64 // of the holder keys
}

// A holding is the state of the quotas of one cluster.
type holding struct {
	taking sync.Mutex // one taker at a time in this process

	mu  sync.Mutex
	rev int64 // at which this process took the quotas; 0 if it does not hold them
}

func holderKey(c cluster.Name) keys.Key { return keys.SystemKey(c, "quotas", "holder") }

// Reset implements [feed.Follower].
func (h *holders) Reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.revs = map[cluster.Name]int64{}
}

// Apply implements [feed.Follower].
func (h *holders) Apply(e feed.Event) {
	if e.Key != holderKey(e.Key.Cluster) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if e.Deleted() {
		delete(h.revs, e.Key.Cluster)
	} else {
		h.revs[e.Key.Cluster] = e.Revision
	}
}

// Done implements [feed.Follower].
func (h *holders) Done() {}

// seen returns the revisions of the holder keys of limits, as the feed has them; 0 for none.
func (h *holders) seen(limits []limit) map[cluster.Name]int64 {
	if !h.of.store.Shared() {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := map[cluster.Name]int64{}
	for _, l := range limits {
		seen[l.Cluster] = h.revs[l.Cluster]
	}
	return seen
}

func (h *holders) get(c cluster.Name) *holding {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known == nil {
		h.known = map[cluster.Name]*holding{}
	}
	one := h.known[c]
	if one == nil {
		one = &holding{}
		h.known[c] = one
	}
	return one
}

func (h *holders) drop(c cluster.Name) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.known, c)
}

// conditions returns the conditions that this process holds the limits that are near during
// the write of a charge, and that no other process has taken the others since they were seen.
func (h *holders) conditions(ctx context.Context, c *charge, seen map[cluster.Name]int64) ([]*store.Condition, error) {
	for _, in := range c.Near() {
		rev, err := h.hold(ctx, c, in, 0)
		if err != nil {
			return nil, err
		}
		seen[in] = rev
	}
	var all []*store.Condition
	for in, rev := range seen {
		all = append(all, &store.Condition{Of: c.key.Resource, On: holderKey(in), Revision: rev, Renew: func(ctx context.Context, lost int64) (int64, error) {
			return h.hold(ctx, c, in, lost)
		}})
	}
	return all, nil
}

// hold takes the limits of a cluster, unless this process holds them, and decides again on
// the charge. found is the revision of another holder, 0 if none is known.
func (h *holders) hold(ctx context.Context, c *charge, in cluster.Name, found int64) (int64, error) {
	rev, err := h.get(in).hold(ctx, h.of.store, in, found)
	if err != nil {
		return 0, err
	}
	if refused := c.Check(); refused != nil {
		return 0, c.exceeded(refused)
	}
	return rev, nil
}

func (h *holding) held() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rev
}

func (h *holding) set(rev int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rev = rev
}

func (h *holding) hold(ctx context.Context, s *store.Store, c cluster.Name, found int64) (int64, error) {
	if rev := h.held(); rev > found {
		return rev, nil
	}
	h.taking.Lock()
	defer h.taking.Unlock()
	for range takeovers {
		if rev := h.held(); rev > found {
			return rev, nil
		}
		if found > 0 {
			select {
			case <-time.After(tenure + rand.N(tenure)):
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}
		rev, err := h.take(ctx, s, c)
		if err != nil {
			return 0, err
		}
		if rev > found {
			h.set(rev)
			return rev, nil
		}
		found = max(found, 1)
	}
	return 0, apierrors.NewServerTimeout(ResourceQuotas().GroupResource(), "hold", 1)
}

// take writes the holder key, and waits until everything up to then is applied. It returns 0
// if another process was quicker.
func (h *holding) take(ctx context.Context, s *store.Store, c cluster.Name) (int64, error) {
	rev, err := s.Touch(ctx, holderKey(c))
	if err != nil || rev == 0 {
		return 0, err
	}
	return rev, s.Feed().Await(ctx, rev)
}
