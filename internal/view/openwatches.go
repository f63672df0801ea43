package view

import (
	"context"
	"maps"
	"slices"
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

// until returns a context for a watch that depends on clusters. It ends when is, called after every
// change of the clusters, returns false. The caller must call the returned function when the
// watch has ended.
func (l *lasting) until(ctx context.Context, is func(context.Context) bool, clusters ...cluster.Name) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	look, stop := l.subscribe(clusters...)
	look <- struct{}{} // it may have changed before this registration
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
		stop()
		looking.Wait()
	}
}

// subscribe returns a channel that gets a value after changes of clusters, until stop is called.
func (l *lasting) subscribe(clusters ...cluster.Name) (look chan struct{}, stop func()) {
	look = make(chan struct{}, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range clusters {
		if l.of[c] == nil {
			l.of[c] = map[chan struct{}]struct{}{}
		}
		l.of[c][look] = struct{}{}
	}
	return look, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, c := range clusters {
			if delete(l.of[c], look); len(l.of[c]) == 0 {
				delete(l.of, c)
			}
		}
	}
}

// rebuilt checks all watches again.
func (l *lasting) rebuilt() {
	l.mu.Lock()
	all := slices.Collect(maps.Keys(l.of))
	l.mu.Unlock()
	for _, c := range all {
		l.changed(c)
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
