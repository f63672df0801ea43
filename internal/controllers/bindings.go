package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/bind"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/exports"
	"github.com/unforked/kcp/internal/feed"
	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/serve"
)

// Bindings keeps the status of APIBindings up to date. A binding depends on its export, on the
// schemas of the export, and on the names that others have in its cluster.
func Bindings(d Deps) control.Loop {
	inbox := newInbox(func() []control.Key {
		return loopKeys(d.APIs.Bindings.Keys(func(b *bind.Binding) bool { return !b.Deleting }))
	})
	d.Store.Feed().Follow(&bindingCauses{inbox, d.APIs})
	return control.Loop{
		Name: "apibindings",
		On:   d.on(inbox.subscribe),
		Do: func(ctx context.Context, k control.Key) error {
			return untilChange(d.APIs.Reconcile(ctx, k.Cluster, k.Name))
		},
	}
}

// bindingCauses finds the bindings that a change may concern.
type bindingCauses struct {
	*inbox
	apis *bind.APIs
}

// Apply implements [feed.Follower].
func (f *bindingCauses) Apply(e feed.Event) {
	c, name := e.Key.Cluster, e.Key.Name
	switch e.Key.Resource {
	case bind.BindingResource():
		if !e.Deleted() {
			f.put(keyOf(e.Key))
			return
		}
		f.unsettled(e.Key)
	case serve.CustomResourceDefinitions():
		if e.Deleted() {
			f.unsettled(e.Key)
		}
	case exports.Resource():
		export := exports.Name{Cluster: c, Name: name}
		f.to(export)
		for _, k := range loopKeys(f.apis.Waiting(export)) {
			f.put(k)
		}
	case exports.RolloutResource():
		for _, export := range f.apis.Exports.List(c, "") {
			f.to(exports.Name{Cluster: c, Name: export.Name})
		}
	case exports.SchemaResource():
		for export := range f.apis.Exports.With(c, name) {
			f.to(export)
		}
	}
}

// unsettled wakes the loop for the bindings of a cluster without resources: the names that they
// need may be free now.
func (f *bindingCauses) unsettled(k keys.Key) {
	for name, b := range f.apis.Bindings.Of(k.Cluster) {
		if !b.Complete {
			f.put(control.Key{Cluster: k.Cluster, Name: name})
		}
	}
}

// to wakes the loop for the bindings to an export.
func (f *bindingCauses) to(e exports.Name) {
	for _, k := range loopKeys(f.apis.Bindings.To(e)) {
		f.put(k)
	}
}

// BindingDeletion deletes the objects that a cluster has through an APIBinding that is being
// deleted, and then removes the finalizer of the binding.
func BindingDeletion(d Deps) control.Loop {
	inbox := newInbox(func() []control.Key {
		return loopKeys(d.APIs.Bindings.Keys(func(b *bind.Binding) bool { return b.Deleting }))
	})
	d.Store.Feed().Follow(&endingBindings{inbox, d})
	return control.Loop{
		Name: "apibinding-deletion",
		On:   d.on(inbox.subscribe),
		Do: func(ctx context.Context, k control.Key) error {
			return untilChange(d.endBinding(ctx, k))
		},
	}
}

// endingBindings finds bindings when their deletion begins, and again when the last object of
// one of their resources is deleted.
type endingBindings struct {
	*inbox
	deps Deps
}

// Apply implements [feed.Follower].
func (f *endingBindings) Apply(e feed.Event) {
	bindings := f.deps.APIs.Bindings
	switch {
	case e.Key.Resource == bind.BindingResource():
		for name, b := range bindings.Of(e.Key.Cluster) { // another one may take over its objects
			if b.Deleting {
				f.put(control.Key{Cluster: e.Key.Cluster, Name: name})
			}
		}
	case e.Key.Root == keys.Custom && e.Key.Identity != "" && e.Deleted() && f.deps.Store.Feed().Ledger().Objects(e.Key.Cluster, e.Key.Resource) == 0:
		if name, b := bindings.Owner(e.Key.Cluster, e.Key.GroupResource()); b != nil && b.Deleting {
			f.put(control.Key{Cluster: e.Key.Cluster, Name: name})
		}
	}
}

// endBinding continues the deletion of a binding.
func (d Deps) endBinding(ctx context.Context, k control.Key) error {
	b := d.APIs.Bindings.Get(k.Cluster, k.Name)
	if b == nil || !b.Deleting {
		return nil
	}
	for _, successor := range d.APIs.Ending(k.Cluster, k.Name).Successors {
		if !slices.Contains(d.APIs.Ending(k.Cluster, k.Name).Successors, successor) {
			continue // another one has the resources now
		}
		if err := d.APIs.TakeOver(ctx, k.Cluster, k.Name, successor); err != nil {
			return err
		}
	}
	ending := d.APIs.Ending(k.Cluster, k.Name)
	all := &instances{deps: d, cluster: k.Cluster}
	for _, r := range ending.Abandoned {
		left, err := all.empty(ctx, r.Resource())
		if err != nil {
			return fmt.Errorf("%w; %w", err, d.APIs.Report(ctx, k.Cluster, k.Name, apisv1alpha2.ResourceDeletionFailed, err.Error()))
		}
		n, err := d.Store.Count(ctx, k.Cluster, r.Resource())
		switch {
		case err != nil:
			return err
		case n == 0:
			continue
		case left == "":
			return control.After(0) // objects that were created meanwhile
		}
		if err := d.APIs.Report(ctx, k.Cluster, k.Name, apisv1alpha2.SomeFinalizersRemain, fmt.Sprintf("objects of %s are left: %d; %s", r.GroupResource, n, left)); err != nil {
			return err
		}
		if all.unreadable {
			return control.After(unreadableAgain)
		}
		return control.After(instancesAgain)
	}
	if len(ending.Successors) > 0 { // a change of theirs wakes the loop
		return d.APIs.Report(ctx, k.Cluster, k.Name, apisv1alpha2.ResourceDeletionFailed, fmt.Sprintf(
			"the objects pass to APIBinding %s, which cannot be bound: see its conditions, or delete it", strings.Join(ending.Successors, ", ")))
	}
	return d.APIs.Release(ctx, k.Cluster, k.Name)
}
