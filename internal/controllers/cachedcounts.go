package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/bind"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/feed"
	"github.com/unforked/kcp/internal/keys"
)

// countEvery is how often the objects of ClusterCachedResources are counted, if they have changed.
const countEvery = 5 * time.Second

// CachedCounts keeps the counts in the status of ClusterCachedResources up to date. Many changes of
// objects cost one write per interval.
func CachedCounts(d Deps) control.Loop {
	f := &countCauses{apis: d.APIs, changed: map[control.Key]struct{}{}}
	d.Store.Feed().Follow(f)
	return control.Loop{
		Name: "clustercachedresources-counts", On: d.on(once), Workers: 1,
		Do: func(ctx context.Context, _ control.Key) error {
			var failed error
			for k := range f.take() {
				err := ignore(d.APIs.ReconcileCached(ctx, k.Cluster, k.Name), apierrors.IsNotFound, apierrors.IsConflict, storage.IsConflict) // a change wakes the other loop
				if err != nil {
					f.put(k)
					failed = errors.Join(failed, fmt.Errorf("count the objects of ClusterCachedResource %s in %s: %w", k.Name, k.Cluster, err))
				}
			}
			if failed != nil {
				return failed
			}
			return control.After(countEvery)
		},
	}
}

// countCauses finds the ClusterCachedResources whose objects change.
type countCauses struct {
	apis *bind.APIs

	mu      sync.Mutex
	changed map[control.Key]struct{}
}

// Reset implements [feed.Follower].
func (*countCauses) Reset() {}

// Apply implements [feed.Follower].
func (f *countCauses) Apply(e feed.Event) {
	if e.Key.Root != keys.Custom {
		return
	}
	for _, r := range f.apis.Cached.List(e.Key.Cluster, "") {
		if r.GroupResource == e.Key.GroupResource() {
			f.put(control.Key{Cluster: e.Key.Cluster, Name: r.Name})
		}
	}
}

// Done implements [feed.Follower].
func (f *countCauses) Done() {
	for _, k := range loopKeys(f.apis.Cached.Keys()) {
		f.put(k)
	}
}

func (f *countCauses) put(k control.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed[k] = struct{}{}
}

// take returns what has changed since the last call.
func (f *countCauses) take() map[control.Key]struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.changed
	f.changed = map[control.Key]struct{}{}
	return all
}
