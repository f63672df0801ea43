package deletion

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/sharing/bind"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
)

// Bindings deletes the objects that a cluster has through an APIBinding that is being
// deleted, those of the resources in Last after all others, and then removes the finalizer of
// the binding.
func Bindings(apis *bind.APIs, of Instances) control.Loop {
	inbox := trigger.New(func() []control.Key {
		return trigger.Keys(apis.Bindings.Keys(func(b *bind.Binding) bool { return b.Deleting }))
	})
	of.Store.Feed().Follow(&endingBindings{inbox, apis.Bindings, of.Store.Feed().Ledger()})
	return control.Loop{
		Name: "apibinding-deletion",
		Slow: slow,
		On:   trigger.On(of.Store.Feed(), inbox.Subscribe),
		Do: func(ctx context.Context, k control.Key) error {
			return trigger.UntilChange(endBinding(ctx, apis, of, k))
		},
	}
}

// endingBindings finds bindings when their deletion begins, and again when the last object of
// one of their resources is deleted.
type endingBindings struct {
	*trigger.Inbox
	bindings *bind.Bindings
	ledger   *feed.Ledger
}

// Apply implements [feed.Follower].
func (f *endingBindings) Apply(e feed.Event) {
	switch {
	case e.Key.Resource == bind.BindingResource():
		for name, b := range f.bindings.Of(e.Key.Cluster) { // another one may take over its objects
			if b.Deleting {
				f.Put(control.Key{Cluster: e.Key.Cluster, Name: name})
			}
		}
	case e.Key.Root == keys.Custom && e.Key.Identity != "" && e.Deleted() && f.ledger.Objects(e.Key.Cluster, e.Key.Resource) == 0:
		if name, b := f.bindings.Owner(e.Key.Cluster, e.Key.GroupResource()); b != nil && b.Deleting {
			f.Put(control.Key{Cluster: e.Key.Cluster, Name: name})
		}
	}
}

// inOrder returns resources in the order in which their objects are deleted.
func inOrder(all []bind.Bound, last []schema.GroupResource) (sorted []bind.Bound) {
	isLast := func(r bind.Bound) bool { return slices.Contains(last, r.GroupResource) }
	sorted = slices.DeleteFunc(slices.Clone(all), isLast)
	return append(sorted, slices.DeleteFunc(slices.Clone(all), func(r bind.Bound) bool { return !isLast(r) })...)
}

// endBinding continues the deletion of a binding.
func endBinding(ctx context.Context, apis *bind.APIs, of Instances, k control.Key) error {
	b := apis.Bindings.Get(k.Cluster, k.Name)
	if b == nil || !b.Deleting {
		return nil
	}
	for _, successor := range apis.Ending(k.Cluster, k.Name).Successors {
		if !slices.Contains(apis.Ending(k.Cluster, k.Name).Successors, successor) {
			continue // another one has the resources now
		}
		if err := apis.TakeOver(ctx, k.Cluster, k.Name, successor); err != nil {
			return err
		}
	}
	ending := apis.Ending(k.Cluster, k.Name)
	all := &sweep{Instances: of, cluster: k.Cluster}
	for _, r := range inOrder(ending.Abandoned, of.Last) {
		left, err := all.empty(ctx, r.Resource())
		if err != nil {
			return fmt.Errorf("%w; %w", err, apis.Report(ctx, k.Cluster, k.Name, apisv1alpha2.ResourceDeletionFailed, err.Error()))
		}
		n, err := of.Store.Count(ctx, k.Cluster, r.Resource())
		switch {
		case err != nil:
			return err
		case n == 0:
			continue
		case left == "":
			return control.After(0) // objects that were created meanwhile
		}
		if err := apis.Report(ctx, k.Cluster, k.Name, apisv1alpha2.SomeFinalizersRemain, fmt.Sprintf("objects of %s are left: %d; %s", r.GroupResource, n, left)); err != nil {
			return err
		}
		return all.again()
	}
	if len(ending.Successors) > 0 { // a change of theirs wakes the loop
		return apis.Report(ctx, k.Cluster, k.Name, apisv1alpha2.ResourceDeletionFailed, fmt.Sprintf(
			"the objects pass to APIBinding %s, which cannot be bound: see its conditions, or delete it", strings.Join(ending.Successors, ", ")))
	}
	return apis.Release(ctx, k.Cluster, k.Name)
}
