package controllers

import (
	"context"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/sharing/endpoints"
	"github.com/unforked/kcp/internal/storage/feed"
)

// PartitionSets keeps the Partitions of PartitionSets.
func PartitionSets(d Deps) control.Loop {
	inbox := trigger.New(func() []control.Key { return trigger.Keys(d.Endpoints.PartitionSets.Keys()) })
	d.Store.Feed().Follow(&partitionCauses{inbox, d.Endpoints, map[control.Key]string{}})
	return control.Loop{
		Name: "partitionsets",
		On:   d.on(inbox.Subscribe, d.shardsFor(func() []control.Key { return trigger.Keys(d.Endpoints.PartitionSets.Keys()) })),
		Do: func(ctx context.Context, k control.Key) error {
			return trigger.UntilChange(d.Endpoints.ReconcilePartitionSet(ctx, k.Cluster, k.Name))
		},
	}
}

// partitionCauses finds the PartitionSets that a change may concern.
type partitionCauses struct {
	*trigger.Inbox
	endpoints *endpoints.Endpoints
	sets      map[control.Key]string // the set of each Partition that has one
}

// Reset implements [feed.Follower].
func (f *partitionCauses) Reset() { clear(f.sets) }

// Apply implements [feed.Follower].
func (f *partitionCauses) Apply(e feed.Event) {
	switch e.Key.Resource {
	case f.endpoints.SetResource:
		f.Put(trigger.Key(e.Key))
	case f.endpoints.PartitionResource:
		f.owned(trigger.Key(e.Key))
	}
}

// owned wakes the loop for the sets that own a Partition, owned it before, or need its name.
func (f *partitionCauses) owned(k control.Key) {
	of := map[string]struct{}{}
	if before, ok := f.sets[k]; ok {
		of[before] = struct{}{}
		delete(f.sets, k)
	}
	if p, ok := f.endpoints.Partitions.Get(k.Cluster, "", k.Name); ok && p.Set != "" {
		of[p.Set] = struct{}{}
		f.sets[k] = p.Set
	}
	for i := range k.Name {
		if _, ok := f.endpoints.PartitionSets.Get(k.Cluster, "", k.Name[:i]); ok && k.Name[i] == '-' {
			of[k.Name[:i]] = struct{}{}
		}
	}
	for set := range of {
		f.Put(control.Key{Cluster: k.Cluster, Name: set})
	}
}

// Done implements [feed.Follower].
func (f *partitionCauses) Done() {
	for _, k := range trigger.Keys(f.endpoints.Partitions.Keys()) {
		if p, ok := f.endpoints.Partitions.Get(k.Cluster, "", k.Name); ok && p.Set != "" {
			f.sets[k] = p.Set
		}
	}
	f.PutAll()
}
