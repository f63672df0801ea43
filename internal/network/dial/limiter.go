package dial

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/unforked/kcp/internal/cluster"
)

// ownerShare is the part of all calls, and of the bytes of their responses, that the clusters of one
// owner may use together: a quarter.
const ownerShare = 4

// A limiter limits concurrent calls and the bytes of their responses, per tenant, per owner of
// tenants, and in total. Only tenants with calls in progress use memory.
type limiter struct {
	limits Limits
	owner  func(cluster.Name) cluster.Name // nil if each tenant is its own owner
	all    chan struct{}                   // semaphore of limits.Calls

	mu     sync.Mutex
	by     map[cluster.Name]*tenantCalls
	owners map[cluster.Name]*ownerCalls
	held   int64 // bytes
}

// ownerCalls counts the calls of the tenants of one owner.
type ownerCalls struct {
	name  cluster.Name
	slots chan struct{} // semaphore
	// guarded by limiter.mu
	tenants int   // with calls
	held    int64 // bytes
}

// tenantCalls counts the calls of one tenant.
type tenantCalls struct {
	slots chan struct{} // semaphore of limits.TenantCalls
	owner *ownerCalls
	// guarded by limiter.mu
	calls int   // running and waiting
	held  int64 // bytes
}

func newLimiter(l Limits, owner func(cluster.Name) cluster.Name) *limiter {
	return &limiter{limits: l, owner: owner, all: make(chan struct{}, l.Calls), by: map[cluster.Name]*tenantCalls{}, owners: map[cluster.Name]*ownerCalls{}}
}

// enter waits for a free slot of the tenant, of its owner and of the server, or for ctx. The
// caller must call leave once, to free the slots.
func (l *limiter) enter(ctx context.Context, tenant cluster.Name) (leave func(), err error) {
	at, err := l.join(tenant)
	if err != nil {
		return nil, err
	}
	if err := take(ctx, at.slots); err != nil {
		l.part(tenant, at)
		return nil, fmt.Errorf("logical cluster %s has reached its limit of %d concurrent calls: %w", tenant, l.limits.TenantCalls, err)
	}
	if err := take(ctx, at.owner.slots); err != nil {
		<-at.slots
		l.part(tenant, at)
		return nil, fmt.Errorf("logical cluster %s and those of the same tenant have reached their limit of %d concurrent calls: %w", tenant, cap(at.owner.slots), err)
	}
	if err := take(ctx, l.all); err != nil {
		<-at.owner.slots
		<-at.slots
		l.part(tenant, at)
		return nil, fmt.Errorf("the server has reached its limit of %d concurrent calls for logical clusters: %w", l.limits.Calls, err)
	}
	return l.leave(tenant, at), nil
}

// leave returns a function that frees the slots of a call.
func (l *limiter) leave(tenant cluster.Name, at *tenantCalls) func() {
	return func() { <-l.all; <-at.owner.slots; <-at.slots; l.part(tenant, at) }
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
	name := tenant
	if l.owner != nil {
		name = l.owner(tenant) // without the lock: it has locks of its own
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.by[tenant]
	if at == nil {
		at = &tenantCalls{slots: make(chan struct{}, l.limits.TenantCalls), owner: l.ownerOf(name)}
		at.owner.tenants++
		l.by[tenant] = at
	}
	if at.calls >= l.limits.TenantCalls+l.limits.TenantWaiting {
		return nil, fmt.Errorf("logical cluster %s has %d calls running and %d waiting, which is the limit; try again later", tenant, l.limits.TenantCalls, l.limits.TenantWaiting)
	}
	at.calls++
	return at, nil
}

// ownerOf returns the calls of an owner. The caller holds mu.
func (l *limiter) ownerOf(name cluster.Name) *ownerCalls {
	of := l.owners[name]
	if of == nil {
		of = &ownerCalls{name: name, slots: make(chan struct{}, max(l.limits.TenantCalls, l.limits.Calls/ownerShare))}
		l.owners[name] = of
	}
	return of
}

func (l *limiter) part(tenant cluster.Name, at *tenantCalls) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at.calls--; at.calls > 0 {
		return
	}
	delete(l.by, tenant)
	if at.owner.tenants--; at.owner.tenants == 0 {
		delete(l.owners, at.owner.name)
	}
}

// hold adds n bytes, which may be negative, to the response bytes of tenant. It returns
// an error if a limit is exceeded then. The tenant must have a call running.
func (l *limiter) hold(tenant cluster.Name, n int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.by[tenant]
	at.held += n
	at.owner.held += n
	l.held += n
	switch {
	case n <= 0:
		return nil
	case at.held > l.limits.TenantHeld:
		return fmt.Errorf("the responses that are being read for logical cluster %s exceed %d bytes in total", tenant, l.limits.TenantHeld)
	case at.owner.held > max(l.limits.TenantHeld, l.limits.Held/ownerShare):
		return fmt.Errorf("the responses that are being read for logical cluster %s and those of the same tenant exceed %d bytes in total", tenant, max(l.limits.TenantHeld, l.limits.Held/ownerShare))
	case l.held > l.limits.Held:
		return errors.New("the responses that the server is reading for logical clusters exceed their limit; try again later")
	}
	return nil
}
