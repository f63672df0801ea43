package controllers

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/bind"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/feed"
)

// EndpointSlices keeps the endpoints of APIExportEndpointSlices up to date. They change with the
// export, with its first and its last binding, and with the Partition.
func EndpointSlices(d Deps) control.Loop {
	inbox := newInbox(func() []control.Key { return loopKeys(d.APIs.Slices.Keys()) })
	d.Store.Feed().Follow(&sliceCauses{inbox, d.APIs, map[bind.ExportName]struct{}{}, map[string]map[control.Key]struct{}{}})
	return control.Loop{
		Name: "apiexportendpointslices",
		On:   d.on(inbox.subscribe, d.shardsFor(func() []control.Key { return loopKeys(d.APIs.Slices.Keys()) })),
		Do: func(ctx context.Context, k control.Key) error {
			return ignore(d.APIs.ReconcileSlice(ctx, k.Cluster, k.Name), apierrors.IsNotFound, apierrors.IsConflict, storage.IsConflict)
		},
	}
}

// sliceCauses finds the slices that a change may concern.
type sliceCauses struct {
	*inbox
	apis  *bind.APIs
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
	case bind.SliceResource():
		if s, ok := f.apis.Slices.Get(e.Key.Cluster, "", e.Key.Name); ok {
			f.name(s.Name, keyOf(e.Key))
		}
		f.put(keyOf(e.Key))
	case bind.PartitionResource():
		for _, s := range f.apis.Slices.List(e.Key.Cluster, "") {
			if s.Partition == e.Key.Name {
				f.put(control.Key{Cluster: e.Key.Cluster, Name: s.Own})
			}
		}
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
		if _, still := f.apis.Slices.Get(k.Cluster, "", k.Name); !still {
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
	for _, k := range f.all() {
		if s, ok := f.apis.Slices.Get(k.Cluster, "", k.Name); ok {
			f.name(s.Name, k)
		}
		f.put(k)
	}
}
