package fair

import (
	"context"
	"sync"

	"golang.org/x/time/rate"
)

// Limits of the events that the watches of a tenant deliver. A watch holds no seat for computing,
// because it waits most of the time. So the seats do not limit how much it converts and encodes.
const (
	eventRate  = 10_000 // a second
	eventBurst = 20_000
)

// deliveries limits the events of tenants with open watches.
type deliveries struct {
	mu sync.Mutex
	of map[string]*delivery // by tenant; guarded by mu
}

type delivery struct {
	limit   *rate.Limiter
	watches int // guarded by the mutex of deliveries
}

// enter returns the limit of a tenant for one more watch, until leave is called.
func (d *deliveries) enter(tenant string) (limit *rate.Limiter, leave func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.of == nil {
		d.of = map[string]*delivery{}
	}
	one := d.of[tenant]
	if one == nil {
		one = &delivery{limit: rate.NewLimiter(eventRate, eventBurst)}
		d.of[tenant] = one
	}
	one.watches++
	return one.limit, sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if one.watches--; one.watches == 0 {
			delete(d.of, tenant)
		}
	})
}

func (d *deliveries) idle() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.of) == 0
}

// Deliver waits until a watch may deliver one more event. It returns an error if ctx ends before.
func (w *Work) Deliver(ctx context.Context) error {
	if w == nil || w.events == nil {
		return nil
	}
	return w.events.Wait(ctx)
}
