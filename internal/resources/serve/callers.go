package serve

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/unforked/kcp/internal/request/fair"
)

// callers are the requests whose objects a webhook may convert, by handler. Upstream calls the
// webhook without the context of the request. Its tenant is not known from the webhook either: the
// request may be one of a loop, or of a provider in the cluster of a consumer.
type callers struct {
	mu sync.Mutex
	of map[handlerKey]map[*fair.Work]struct{} // guarded by mu
}

func newCallers() *callers { return &callers{of: map[handlerKey]map[*fair.Work]struct{}{}} }

// enter adds the request of ctx until leave is called.
func (c *callers) enter(ctx context.Context, k handlerKey) (leave func()) {
	w := fair.From(ctx)
	if w == nil {
		return func() {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[k] == nil {
		c.of[k] = map[*fair.Work]struct{}{}
	}
	c.of[k][w] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if delete(c.of[k], w); len(c.of[k]) == 0 {
			delete(c.of, k)
		}
	}
}

// lend makes a call for a handler. Meanwhile one of its requests has no processor seat.
func (c *callers) lend(k handlerKey, call func()) {
	c.mu.Lock()
	some := slices.Collect(maps.Keys(c.of[k]))
	c.mu.Unlock()
	fair.Lend(some, call)
}
