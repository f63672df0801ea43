package controllers

import (
	"context"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/storage/keys"
)

// Scheduling places Workspaces that no shard could host when they were created. A change of a
// Shard, or of the Workspace itself, wakes it.
func Scheduling(d Deps) control.Loop {
	tree := d.Workspaces.Tree
	return control.Loop{
		Name:    "workspace-scheduling",
		On:      d.on(d.workspaces, d.shards),
		Workers: 1,
		Do: func(ctx context.Context, k control.Key) error {
			if child, ok := tree.Child(k.Cluster, k.Name); !ok || !child.Unscheduled() {
				return nil
			}
			return trigger.UntilChange(d.Workspaces.Schedule(ctx, k.Cluster, k.Name))
		},
	}
}

// shards wakes a loop with the keys of the Workspaces that wait for a shard, when a Shard
// changes.
func (d Deps) shards(wake func(control.Key)) (unsubscribe func()) {
	return d.shardsFor(func() []control.Key { return trigger.Keys(d.Workspaces.Tree.Unscheduled()) })(wake)
}

// shardsFor wakes a loop with some keys when a Shard changes.
func (d Deps) shardsFor(some func() []control.Key) func(func(control.Key)) (unsubscribe func()) {
	return func(wake func(control.Key)) func() {
		return d.Workspaces.Shards.Subscribe(func(keys.Key) {
			for _, k := range some() {
				wake(k)
			}
		})
	}
}
