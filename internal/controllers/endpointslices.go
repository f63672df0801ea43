package controllers

import (
	"context"

	"github.com/unforked/kcp/internal/bind"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/feed"
	"github.com/unforked/kcp/internal/keys"
)

// EndpointSlices keeps the endpoints of APIExportEndpointSlices up to date. They change with the
// export, with its first and its last binding, and with the Partition.
func EndpointSlices(d Deps) control.Loop {
	return d.slices("apiexportendpointslices", &sliceCauses{own: bind.SliceResource(), all: d.APIs.Slices}, d.APIs.ReconcileSlice)
}

// CachedEndpointSlices is [EndpointSlices] for ClusterCachedResourceEndpointSlices. They also
// change with the ClusterCachedResource.
func CachedEndpointSlices(d Deps) control.Loop {
	return d.slices("clustercachedresourceendpointslices", &sliceCauses{own: d.APIs.Kinds.CachedSlices, all: d.APIs.CachedSlices}, d.APIs.ReconcileCachedSlice)
}

func (d Deps) slices(name string, f *sliceCauses, reconcile func(context.Context, cluster.Name, string) error) control.Loop {
	f.follow(d)
	return control.Loop{
		Name: name,
		On:   d.on(f.subscribe, d.shardsFor(func() []control.Key { return loopKeys(f.all.Keys()) })),
		Do: func(ctx context.Context, k control.Key) error {
			return untilChange(reconcile(ctx, k.Cluster, k.Name))
		},
	}
}

// sliceCauses finds the slices that a change may concern.
type sliceCauses struct {
	*inbox
	apis  *bind.APIs
	own   keys.Resource                       // of the slices
	all   *feed.Table[*bind.Slice]            // of the slices
	bound map[bind.ExportName]struct{}        // exports that somebody binds
	named map[string]map[control.Key]struct{} // slices by the name of their export
}

// follow makes f follow the change feed. Call it before the feed starts.
func (f *sliceCauses) follow(d Deps) {
	f.inbox, f.apis = newInbox(func() []control.Key { return loopKeys(f.all.Keys()) }), d.APIs
	f.bound, f.named = map[bind.ExportName]struct{}{}, map[string]map[control.Key]struct{}{}
	d.APIs.Bindings.OnExport(f.note)
	d.Store.Feed().Follow(f)
}

// Reset implements [feed.Follower].
func (f *sliceCauses) Reset() {
	clear(f.bound)
	clear(f.named)
}

// Apply implements [feed.Follower].
func (f *sliceCauses) Apply(e feed.Event) {
	switch e.Key.Resource {
	case f.own:
		if s, ok := f.all.Get(e.Key.Cluster, "", e.Key.Name); ok {
			f.name(s.Name, keyOf(e.Key))
		}
		f.put(keyOf(e.Key))
	case f.apis.Kinds.Partitions:
		f.in(e.Key.Cluster, func(s *bind.Slice) bool { return s.Partition == e.Key.Name })
	case f.apis.Kinds.Cached:
		f.in(e.Key.Cluster, func(s *bind.Slice) bool { return s.Cached == e.Key.Name })
	case bind.ExportResource():
		export := bind.ExportName{Cluster: e.Key.Cluster, Name: e.Key.Name}
		f.binds(export) // an export that replaces another one may lose its bindings
		f.of(export)
	}
}

// in wakes the loop for some slices of a cluster.
func (f *sliceCauses) in(c cluster.Name, some func(*bind.Slice) bool) {
	for _, s := range f.all.List(c, "") {
		if some(s) {
			f.put(control.Key{Cluster: c, Name: s.Own})
		}
	}
}

// note wakes the loop if an export has got its first binding or lost its last.
func (f *sliceCauses) note(export bind.ExportName) {
	if f.binds(export) {
		f.of(export)
	}
}

// binds records whether an export has bindings, and reports whether that has changed.
func (f *sliceCauses) binds(export bind.ExportName) (changed bool) {
	_, was := f.bound[export]
	is := f.apis.Bindings.Bound(export)
	if is {
		f.bound[export] = struct{}{}
	} else {
		delete(f.bound, export)
	}
	return was != is
}

// name notes that a slice is of an export of a name, which never changes.
func (f *sliceCauses) name(export string, k control.Key) {
	if f.named[export] == nil {
		f.named[export] = map[control.Key]struct{}{}
	}
	f.named[export][k] = struct{}{}
}

// of wakes the loop for the slices of an export. Exports of the same name in other clusters have
// other slices.
func (f *sliceCauses) of(export bind.ExportName) {
	for k := range f.named[export.Name] {
		s, still := f.all.Get(k.Cluster, "", k.Name)
		if !still {
			delete(f.named[export.Name], k)
			continue
		}
		if f.apis.MayMean(k.Cluster, s, export) {
			f.put(k)
		}
	}
	if len(f.named[export.Name]) == 0 {
		delete(f.named, export.Name)
	}
}

// Done implements [feed.Follower].
func (f *sliceCauses) Done() {
	for _, export := range f.apis.Bindings.BoundExports() {
		f.bound[export] = struct{}{}
	}
	for _, k := range f.inbox.all() {
		if s, ok := f.all.Get(k.Cluster, "", k.Name); ok {
			f.name(s.Name, k)
		}
		f.put(k)
	}
}
