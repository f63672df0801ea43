package dial

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/unforked/kcp/internal/cluster"
)

// lanes bound how many calls there are at once, and how much of their answers is held:
// for each tenant and, several times as high, in all. They know only tenants that have
// calls now.
type lanes struct {
	limits Limits
	all    chan struct{} // as many as there may be calls

	mu   sync.Mutex
	by   map[cluster.Name]*lane
	held int64 // bytes
}

// A lane is what a tenant has going on.
type lane struct {
	slots chan struct{} // as many as it may have calls
	// guarded by lanes.mu
	calls int   // running and waiting
	held  int64 // bytes
}

func newLanes(l Limits) *lanes {
	return &lanes{limits: l, all: make(chan struct{}, l.Calls), by: map[cluster.Name]*lane{}}
}

// enter waits for the turn of a call; leave gives its place back.
func (l *lanes) enter(ctx context.Context, tenant cluster.Name) (leave func(), err error) {
	at, err := l.join(tenant)
	if err != nil {
		return nil, err
	}
	if err := take(ctx, at.slots); err != nil {
		l.part(tenant, at)
		return nil, fmt.Errorf("logical cluster %s has %d calls that are not answered, and no more are made at once: %w", tenant, l.limits.TenantCalls, err)
	}
	if err := take(ctx, l.all); err != nil {
		<-at.slots
		l.part(tenant, at)
		return nil, fmt.Errorf("the server has %d calls for logical clusters that are not answered, and no more are made at once: %w", l.limits.Calls, err)
	}
	return func() { <-l.all; <-at.slots; l.part(tenant, at) }, nil
}

// take takes a slot, without a look at the context if there is one.
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

func (l *lanes) join(tenant cluster.Name) (*lane, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.by[tenant]
	if at == nil {
		at = &lane{slots: make(chan struct{}, l.limits.TenantCalls)}
		l.by[tenant] = at
	}
	if at.calls >= l.limits.TenantCalls+l.limits.TenantWaiting {
		return nil, fmt.Errorf("logical cluster %s has %d calls running and %d waiting; it must wait for their answers", tenant, l.limits.TenantCalls, l.limits.TenantWaiting)
	}
	at.calls++
	return at, nil
}

func (l *lanes) part(tenant cluster.Name, at *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at.calls--; at.calls == 0 {
		delete(l.by, tenant)
	}
}

// hold accounts for n more bytes of an answer to tenant, which has a call running.
func (l *lanes) hold(tenant cluster.Name, n int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.by[tenant]
	at.held += n
	l.held += n
	switch {
	case n <= 0:
		return nil
	case at.held > l.limits.TenantHeld:
		return fmt.Errorf("the answers to the calls of logical cluster %s are longer than %d bytes together", tenant, l.limits.TenantHeld)
	case l.held > l.limits.Held:
		return errors.New("the server has too many long answers to calls for logical clusters to read this one now")
	}
	return nil
}
