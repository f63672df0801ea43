package view

import (
	"context"
	"maps"
	"slices"
	"sync"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/unforked/kcp/internal/cluster"
)

// openWatches are the watches through a view, by the clusters that they depend on. Each is checked after
// every change of those, and ends when it is not allowed any more.
type openWatches struct {
	mu sync.Mutex
	of map[cluster.Name]map[chan struct{}]struct{} // closed never; one check waits in each
}

func newOpenWatches() openWatches {
	return openWatches{of: map[cluster.Name]map[chan struct{}]struct{}{}}
}

// while returns the entry of a request. If that is a watch, it ends as until tells.
func (o *openWatches) while(info *request.RequestInfo, stays func(context.Context) bool, clusters ...cluster.Name) entry {
	if info.Verb != "watch" {
		return unchanged
	}
	return func(ctx context.Context) (context.Context, func()) { return o.until(ctx, stays, clusters...) }
}

// until returns a context for a watch that depends on clusters. The context ends when stays, called after
// every change of the clusters, returns false. The caller must call the returned function when the
// watch has ended.
func (o *openWatches) until(ctx context.Context, stays func(context.Context) bool, clusters ...cluster.Name) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	changed, stop := o.subscribe(clusters...)
	changed <- struct{}{} // it may have changed before this registration
	var checks sync.WaitGroup
	checks.Go(func() {
		for {
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
			if !stays(ctx) {
				cancel()
				return
			}
		}
	})
	return ctx, func() {
		cancel()
		stop()
		checks.Wait()
	}
}

// subscribe returns a channel that gets a value after changes of clusters, until stop is called.
func (o *openWatches) subscribe(clusters ...cluster.Name) (changed chan struct{}, stop func()) {
	changed = make(chan struct{}, 1)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range clusters {
		if o.of[c] == nil {
			o.of[c] = map[chan struct{}]struct{}{}
		}
		o.of[c][changed] = struct{}{}
	}
	return changed, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, c := range clusters {
			if delete(o.of[c], changed); len(o.of[c]) == 0 {
				delete(o.of, c)
			}
		}
	}
}

// rebuilt checks all watches again.
func (o *openWatches) rebuilt() {
	o.mu.Lock()
	all := slices.Collect(maps.Keys(o.of))
	o.mu.Unlock()
	for _, c := range all {
		o.changed(c)
	}
}

// changed checks the watches in cluster c again.
func (o *openWatches) changed(c cluster.Name) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for changed := range o.of[c] {
		select {
		case changed <- struct{}{}:
		default: // an earlier check is still pending
		}
	}
}
