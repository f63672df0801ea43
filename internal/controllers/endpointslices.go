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
	f.inbox, f.apis = newInbox(func() []control.Key { return loopKeys(f.all.Keys()) }), d.APIs
	f.bound, f.named = map[bind.ExportName]struct{}{}, map[string]map[control.Key]struct{}{}
	d.Store.Feed().Follow(f)
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
		f.of(e.Key.Name)
	case bind.BindingResource():
		if b := f.apis.Bindings.Get(e.Key.Cluster, e.Key.Name); b != nil && b.Complete {
			f.note(b.Export)
		} else {
			for export := range f.bound { // the binding had one of them
				f.note(export)
			}
		}
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
	_, was := f.bound[export]
	is := f.apis.Bindings.Bound(export)
	switch {
	case was == is:
		return
	case is:
		f.bound[export] = struct{}{}
	default:
		delete(f.bound, export)
	}
	f.of(export.Name)
}

// name notes that a slice is of an export of a name, which never changes.
func (f *sliceCauses) name(export string, k control.Key) {
	if f.named[export] == nil {
		f.named[export] = map[control.Key]struct{}{}
	}
	f.named[export][k] = struct{}{}
}

// of wakes the loop for the slices of exports of a name.
func (f *sliceCauses) of(name string) {
	for k := range f.named[name] {
		if _, still := f.all.Get(k.Cluster, "", k.Name); !still {
			delete(f.named[name], k)
			continue
		}
		f.put(k)
	}
	if len(f.named[name]) == 0 {
		delete(f.named, name)
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
