package fair

import (
	"context"
	"sync"
)

// Waits counts the goroutines of one request that wait at the same time. The request has no
// seat while any of them waits. The zero value is ready.
type Waits struct {
	mu   sync.Mutex
	n    int
	back func() // takes the seat back
}

// Begin gives up the seat of the request of ctx, unless another goroutine has. The last
// goroutine that calls end takes it back, as [Wait] does. end may be called several times.
func (w *Waits) Begin(ctx context.Context) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n++; w.n == 1 {
		w.back, _ = From(ctx).pause()
	}
	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.n--; w.n == 0 {
			w.back()
		}
	})
}

// WaitOutside is [Wait] for goroutines of one request that wait for other systems at the same time: the
// request has no seat while any of them waits.
func WaitOutside(ctx context.Context, wait func()) {
	if w := From(ctx); w != nil {
		defer w.outside.Begin(ctx)()
	}
	wait()
}
