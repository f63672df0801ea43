package controllers

import (
	"context"
	"time"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/sharing/virtual"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
)

// countEvery is how often the objects of one ClusterCachedResource are counted at most.
const countEvery = 2 * time.Second

// CachedCounts keeps the counts in the status of ClusterCachedResources up to date. Many changes of
// objects cost one count and one write per interval.
func CachedCounts(d Deps) control.Loop {
	inbox := trigger.New(func() []control.Key { return trigger.Keys(d.Virtual.Cached.Keys()) })
	d.Store.Feed().Follow(&countCauses{inbox, d.Virtual})
	var counted control.Intervals
	return control.Loop{
		Name: "clustercachedresources-counts", Workers: 1, // a count reads many objects
		On: d.on(inbox.Subscribe),
		Do: func(ctx context.Context, k control.Key) error {
			if wait := counted.Wait(k, time.Now()); wait > 0 {
				return control.After(wait)
			}
			counted.Begin(k, time.Now(), countEvery)
			return trigger.UntilChange(d.Virtual.Count(ctx, k.Cluster, k.Name))
		},
	}
}

// countCauses finds the ClusterCachedResources whose counts a change may concern.
type countCauses struct {
	*trigger.Inbox
	virtual *virtual.Storage
}

// Apply implements [feed.Follower]. After a count was written, the loop counts once more, and finds
// the same.
func (f *countCauses) Apply(e feed.Event) {
	if e.Key.Root != keys.Custom {
		return
	}
	if e.Key.Resource == f.virtual.Resource {
		f.Put(trigger.Key(e.Key))
		return
	}
	stays := e.Value != nil && e.Previous != nil
	for _, r := range f.virtual.Cached.List(e.Key.Cluster, "") {
		if r.GroupResource == e.Key.GroupResource() && !(stays && r.Part.String() == "") {
			f.Put(control.Key{Cluster: e.Key.Cluster, Name: r.Name})
		}
	}
}
