package controllers

import (
	"context"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/sharing/endpoints"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
)

// EndpointSlices keeps the endpoints of APIExportEndpointSlices up to date. They change with the
// export, with its first and its last binding, and with the Partition.
func EndpointSlices(d Deps) control.Loop {
	return d.slices("apiexportendpointslices", &sliceCauses{own: exports.SliceResource(), all: d.Endpoints.Slices}, d.Endpoints.ReconcileSlice)
}

// CachedEndpointSlices is [EndpointSlices] for ClusterCachedResourceEndpointSlices. They also
// change with the ClusterCachedResource.
func CachedEndpointSlices(d Deps) control.Loop {
	return d.slices("clustercachedresourceendpointslices", &sliceCauses{own: d.Virtual.SliceResource, all: d.Virtual.Slices}, d.Virtual.ReconcileSlice)
}

func (d Deps) slices(name string, f *sliceCauses, reconcile func(context.Context, cluster.Name, string) error) control.Loop {
	f.follow(d)
	return control.Loop{
		Name: name,
		On:   d.on(f.Subscribe, d.shardsFor(func() []control.Key { return trigger.Keys(f.all.Keys()) })),
		Do: func(ctx context.Context, k control.Key) error {
			return trigger.UntilChange(reconcile(ctx, k.Cluster, k.Name))
		},
	}
}

// sliceCauses finds the slices that a change may concern.
type sliceCauses struct {
	*trigger.Inbox
	deps  Deps
	own   keys.Resource                    // of the slices
	all   *feed.Table[*endpoints.Slice]    // of the slices
	bound map[exports.Name]struct{}        // exports that somebody binds
	known map[control.Key]*endpoints.Slice // those in paths
	paths exports.PathIndex[control.Key]   // slices by their export
}

// follow makes f follow the change feed. Call it before the feed starts.
func (f *sliceCauses) follow(d Deps) {
	f.Inbox, f.deps = trigger.New(func() []control.Key { return trigger.Keys(f.all.Keys()) }), d
	f.bound, f.known = map[exports.Name]struct{}{}, map[control.Key]*endpoints.Slice{}
	d.APIs.Bindings.OnExport(f.note)
	d.Store.Feed().Follow(f)
}

// Reset implements [feed.Follower].
func (f *sliceCauses) Reset() {
	clear(f.bound)
	clear(f.known)
	f.paths.Clear()
}

// Apply implements [feed.Follower].
func (f *sliceCauses) Apply(e feed.Event) {
	switch e.Key.Resource {
	case f.own:
		f.know(trigger.Key(e.Key))
		f.Put(trigger.Key(e.Key))
	case f.deps.Endpoints.PartitionResource:
		f.in(e.Key.Cluster, func(s *endpoints.Slice) bool { return s.Partition == e.Key.Name })
	case f.deps.Virtual.Resource:
		f.in(e.Key.Cluster, func(s *endpoints.Slice) bool { return s.Cached == e.Key.Name })
	case exports.Resource():
		export := exports.Name{Cluster: e.Key.Cluster, Name: e.Key.Name}
		f.binds(export) // an export that replaces another one may lose its bindings
		f.of(export)
	}
}

// in wakes the loop for some slices of a cluster.
func (f *sliceCauses) in(c cluster.Name, some func(*endpoints.Slice) bool) {
	for _, s := range f.all.List(c, "") {
		if some(s) {
			f.Put(control.Key{Cluster: c, Name: s.Own})
		}
	}
}

// note wakes the loop if an export has got its first binding or lost its last.
func (f *sliceCauses) note(export exports.Name) {
	if f.binds(export) {
		f.of(export)
	}
}

// binds records whether an export has bindings, and reports whether that has changed.
func (f *sliceCauses) binds(export exports.Name) (changed bool) {
	_, was := f.bound[export]
	is := f.deps.APIs.Bindings.Bound(export)
	if is {
		f.bound[export] = struct{}{}
	} else {
		delete(f.bound, export)
	}
	return was != is
}

// know notes the export of a slice.
func (f *sliceCauses) know(k control.Key) {
	if before, ok := f.known[k]; ok {
		f.paths.Drop(k.Cluster, before.Path, before.Name, k)
		delete(f.known, k)
	}
	if now, ok := f.all.Get(k.Cluster, "", k.Name); ok {
		f.paths.Put(k.Cluster, now.Path, now.Name, k)
		f.known[k] = now
	}
}

// of wakes the loop for the slices of an export. A slice whose path led nowhere is among them as soon
// as an export appears at its path. Slices of other exports are not looked at: their number does not
// delay the change feed.
func (f *sliceCauses) of(export exports.Name) {
	for _, k := range f.paths.Find(f.deps.APIs.Exports.AncestryOf(export.Cluster), export.Name) {
		f.Put(k)
	}
}

// Done implements [feed.Follower].
func (f *sliceCauses) Done() {
	for _, export := range f.deps.APIs.Bindings.BoundExports() {
		f.bound[export] = struct{}{}
	}
	for _, k := range trigger.Keys(f.all.Keys()) {
		f.know(k)
		f.Put(k)
	}
}
