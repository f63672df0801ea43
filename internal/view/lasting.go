package view

import (
	"context"
	"sync"

	"github.com/unforked/kcp/internal/cluster"
)

// lasting are the watches through a view. A watch ends when its cluster leaves the view.
type lasting struct {
	mu sync.Mutex
	of map[cluster.Name]map[chan struct{}]struct{} // closed never; one look waits in each
}

func newLasting() lasting {
	return lasting{of: map[cluster.Name]map[chan struct{}]struct{}{}}
}

// until returns a context for a watch in cluster c. It ends when is, called after every
// change of the cluster, returns false. The caller must call the returned function when the
// watch has ended.
func (l *lasting) until(ctx context.Context, c cluster.Name, is func(context.Context) bool) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	look := make(chan struct{}, 1)
	look <- struct{}{} // it may have changed before this registration
	l.mu.Lock()
	if l.of[c] == nil {
		l.of[c] = map[chan struct{}]struct{}{}
	}
	l.of[c][look] = struct{}{}
	l.mu.Unlock()
	var looking sync.WaitGroup
	looking.Go(func() {
		for {
			select {
			case <-look:
			case <-ctx.Done():
				return
			}
			if !is(ctx) {
				cancel()
				return
			}
		}
	})
	return ctx, func() {
		cancel()
		l.mu.Lock()
		if delete(l.of[c], look); len(l.of[c]) == 0 {
			delete(l.of, c)
		}
		l.mu.Unlock()
		looking.Wait()
	}
}

// changed checks the watches in cluster c again.
func (l *lasting) changed(c cluster.Name) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for look := range l.of[c] {
		select {
		case look <- struct{}{}:
		default: // an earlier check is still pending
		}
	}
}
