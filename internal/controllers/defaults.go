package controllers

import (
	"context"
	"sync"
	"time"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/sharing/bind"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/feed"
)

// DefaultBindings makes the default bindings of workspaces whose creation could not make them:
// an export was missing, or the creation was interrupted. Where the life cycle of the type is
// Maintain, it makes them again, and lets them accept what the export claims later.
func DefaultBindings(d Deps) control.Loop {
	inbox := trigger.New(func() []control.Key { return nil }) // all clusters wake the loop when it starts
	f := &defaultCauses{Inbox: inbox, deps: d, waiting: map[string]map[cluster.Name]struct{}{}}
	d.Store.Feed().Follow(f)
	return control.Loop{
		Name: "default-apibindings",
		On:   d.on(d.clusters, f.types, inbox.Subscribe),
		Do: func(ctx context.Context, k control.Key) error {
			if k.Name != "" { // a WorkspaceType
				for _, c := range d.Workspaces.Types.Maintained(k.Cluster, k.Name) {
					f.Put(control.Key{Cluster: c})
				}
				return nil
			}
			needs, changes := d.Workspaces.Defaulted(ctx, k.Cluster)
			if !needs && !changes {
				return nil
			}
			if root, _ := d.Workspaces.Tree.Cluster(k.Cluster); needs && !root.Whole {
				if early := createTimeout - time.Since(root.Created); early > 0 {
					return control.After(early)
				}
			}
			waits, err := d.Workspaces.BindDefaults(ctx, k.Cluster)
			if len(waits) > 0 && err == nil {
				for _, w := range waits {
					f.await(w.Export, k.Cluster)
				}
				_, err = d.Workspaces.BindDefaults(ctx, k.Cluster) // an export may have come meanwhile
			}
			return trigger.UntilChange(err)
		},
	}
}

// defaultCauses finds the clusters whose default bindings a change may concern.
type defaultCauses struct {
	*trigger.Inbox
	deps Deps

	mu      sync.Mutex
	waiting map[string]map[cluster.Name]struct{} // clusters that wait for exports, by name
}

// types wakes the loop with the keys of WorkspaceTypes that change.
func (f *defaultCauses) types(wake func(control.Key)) (unsubscribe func()) { return f.deps.types(wake) }

// await notes that a cluster waits for an export of a name.
func (f *defaultCauses) await(export string, c cluster.Name) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiting[export] == nil {
		f.waiting[export] = map[cluster.Name]struct{}{}
	}
	f.waiting[export][c] = struct{}{}
}

// Apply implements [feed.Follower].
func (f *defaultCauses) Apply(e feed.Event) {
	switch e.Key.Resource {
	case bind.BindingResource():
		if _, known := f.deps.Workspaces.Tree.Cluster(e.Key.Cluster); known {
			f.Put(control.Key{Cluster: e.Key.Cluster})
		}
	case exports.Resource():
		f.mu.Lock()
		all := f.waiting[e.Key.Name]
		delete(f.waiting, e.Key.Name)
		f.mu.Unlock()
		for c := range all {
			f.Put(control.Key{Cluster: c})
		}
	}
}
