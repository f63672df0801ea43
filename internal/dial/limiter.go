package dial

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/unforked/kcp/internal/cluster"
)

// A limiter limits concurrent calls and the bytes of their responses, per tenant and in
// total. Only tenants with calls in progress use memory.
type limiter struct {
	limits Limits
	all    chan struct{} // semaphore of limits.Calls

	mu   sync.Mutex
	by   map[cluster.Name]*tenantCalls
	held int64 // bytes
}

// tenantCalls counts the calls of one tenant.
type tenantCalls struct {
	slots chan struct{} // semaphore of limits.TenantCalls
	// guarded by limiter.mu
	calls int   // running and waiting
	held  int64 // bytes
}

func newLimiter(l Limits) *limiter {
	return &limiter{limits: l, all: make(chan struct{}, l.Calls), by: map[cluster.Name]*tenantCalls{}}
}

// enter waits for a free slot of the tenant and of the server, or for ctx. The caller
// must call leave once, to free the slots.
func (l *limiter) enter(ctx context.Context, tenant cluster.Name) (leave func(), err error) {
	at, err := l.join(tenant)
	if err != nil {
		return nil, err
	}
	if err := take(ctx, at.slots); err != nil {
		l.part(tenant, at)
		return nil, fmt.Errorf("logical cluster %s has reached its limit of %d concurrent calls: %w", tenant, l.limits.TenantCalls, err)
	}
	if err := take(ctx, l.all); err != nil {
		<-at.slots
		l.part(tenant, at)
		return nil, fmt.Errorf("the server has reached its limit of %d concurrent calls for logical clusters: %w", l.limits.Calls, err)
	}
	return func() { <-l.all; <-at.slots; l.part(tenant, at) }, nil
}

// take takes a slot. A free slot is taken even if ctx has ended.
func take(ctx context.Context, slots chan<- struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	default:
	}
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *limiter) join(tenant cluster.Name) (*tenantCalls, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.by[tenant]
	if at == nil {
		at = &tenantCalls{slots: make(chan struct{}, l.limits.TenantCalls)}
		l.by[tenant] = at
	}
	if at.calls >= l.limits.TenantCalls+l.limits.TenantWaiting {
		return nil, fmt.Errorf("logical cluster %s has %d calls running and %d waiting, which is the limit; try again later", tenant, l.limits.TenantCalls, l.limits.TenantWaiting)
	}
	at.calls++
	return at, nil
}

func (l *limiter) part(tenant cluster.Name, at *tenantCalls) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at.calls--; at.calls == 0 {
		delete(l.by, tenant)
	}
}

// hold adds n bytes, which may be negative, to the response bytes of tenant. It returns
// an error if a limit is exceeded then. The tenant must have a call running.
func (l *limiter) hold(tenant cluster.Name, n int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.by[tenant]
	at.held += n
	l.held += n
	switch {
	case n <= 0:
		return nil
	case at.held > l.limits.TenantHeld:
		return fmt.Errorf("the responses that are being read for logical cluster %s exceed %d bytes in total", tenant, l.limits.TenantHeld)
	case l.held > l.limits.Held:
		return errors.New("the responses that the server is reading for logical clusters exceed their limit; try again later")
	}
	return nil
}
