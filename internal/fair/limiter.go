package fair

import (
	"context"
	"slices"
	"sync"
	"time"
)

// A limiter limits the concurrent requests of each tenant. Further requests of a tenant
// wait in a FIFO queue of that tenant.
type limiter struct {
	limit    int // concurrent requests of one tenant
	maxQueue int // waiting requests of one tenant

	mu      sync.Mutex
	tenants map[string]*limited
}

// limited is the state of one tenant.
type limited struct {
	running int
	queue   []chan struct{} // closed when the request may run
}

func newLimiter(limit, maxQueue int) *limiter {
	return &limiter{limit: limit, maxQueue: maxQueue, tenants: map[string]*limited{}}
}

// acquire waits until the tenant may run another request. The caller must call release
// once, unless acquire returns an error.
func (l *limiter) acquire(ctx context.Context, tenant string, timeout time.Duration) error {
	l.mu.Lock()
	t := l.tenants[tenant]
	if t == nil {
		t = &limited{}
		l.tenants[tenant] = t
	}
	if t.running < l.limit {
		t.running++
		l.mu.Unlock()
		return nil
	}
	if len(t.queue) >= l.maxQueue {
		l.mu.Unlock()
		return errFull
	}
	granted := make(chan struct{})
	t.queue = append(t.queue, granted)
	l.mu.Unlock()
	if wait(ctx, granted, timeout) {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(t.queue, granted)
	if i < 0 {
		return nil // granted at the same time
	}
	t.queue = slices.Delete(t.queue, i, i+1)
	return errTimeout
}

// wait reports whether granted is closed before the timeout and before ctx ends.
func wait(ctx context.Context, granted <-chan struct{}, timeout time.Duration) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-granted:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// release ends a request of a tenant, and starts the next one in its queue.
func (l *limiter) release(tenant string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tenants[tenant]
	t.running--
	for len(t.queue) > 0 && t.running < l.limit {
		t.running++
		close(t.queue[0])
		t.queue = t.queue[1:]
	}
	if t.running == 0 && len(t.queue) == 0 {
		delete(l.tenants, tenant)
	}
}

func (l *limiter) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.tenants) == 0
}
