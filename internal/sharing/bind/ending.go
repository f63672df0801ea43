package bind

import (
	"context"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/tenancy"
)

// An Ending says what happens to the resources of a binding that is being deleted.
type Ending struct {
	// Abandoned are the resources that end with the binding.
	Abandoned []Bound
	// Successors are the bindings to exports of the same identity that want a resource, and do not
	// have it yet. The objects pass to them.
	Successors []string
}

// Ending returns what happens to the resources of a binding that is being deleted.
func (a *APIs) Ending(c cluster.Name, name string) Ending {
	var e Ending
	all := a.Bindings.Of(c)
	own := all[name]
	if own == nil {
		return e
	}
	delete(all, name)
	maps.DeleteFunc(all, func(_ string, b *Binding) bool { return b.Deleting })
	for _, r := range own.Bound {
		if r.Virtual || tenancy.IsGiven(r.GroupResource) {
			continue // it leaves no objects
		}
		var successors []string
		has := false
		for other, b := range all {
			has = has || slices.ContainsFunc(b.Bound, func(x Bound) bool { return x.Resource() == r.Resource() })
			if a.wants(b, r) {
				successors = append(successors, other)
			}
		}
		switch {
		case has:
		case len(successors) == 0:
			e.Abandoned = append(e.Abandoned, r)
		default:
			e.Successors = append(e.Successors, successors...)
		}
	}
	slices.Sort(e.Successors)
	e.Successors = slices.Compact(e.Successors)
	return e
}

// wants reports whether the export of a binding has a resource of an identity.
func (a *APIs) wants(b *Binding, r Bound) bool {
	e, ok := a.Exports.Get(b.Export.Cluster, "", b.Export.Name)
	return ok && !b.Replaced && !e.Deleting && e.Identity == r.Identity && e.Has(r.GroupResource) && e.Virtual(r.GroupResource) == nil
}

// TakeOver gives the resources of a binding that is being deleted to a successor. Both have them
// until the deletion is complete, so that the objects have an owner at any time.
func (a *APIs) TakeOver(ctx context.Context, c cluster.Name, from, successor string) error {
	b := &apisv1alpha2.APIBinding{}
	rev, err := a.store.ReadInto(ctx, BindingResource().Key(c, "", successor), b)
	if err != nil || rev == 0 || b.DeletionTimestamp != nil {
		return err
	}
	_, at, err := a.write(ctx, c, b, rev, from)
	if err != nil {
		return err
	}
	return a.store.Feed().Await(ctx, at)
}

// Report records why a binding that is being deleted still exists.
func (a *APIs) Report(ctx context.Context, c cluster.Name, name, reason, message string) error {
	return a.change(ctx, c, name, func(b *apisv1alpha2.APIBinding) bool {
		return b.Status.Conditions.Set(conditions.Condition{
			Type: apisv1alpha2.BindingResourceDeleteSuccess, Status: metav1.ConditionFalse, Severity: conditions.SeverityError, Reason: reason, Message: message,
		})
	})
}

// Release removes the finalizer of a binding whose objects are gone.
func (a *APIs) Release(ctx context.Context, c cluster.Name, name string) error {
	return a.change(ctx, c, name, func(b *apisv1alpha2.APIBinding) bool {
		before := len(b.Finalizers)
		b.Finalizers = slices.DeleteFunc(b.Finalizers, func(f string) bool { return f == apisv1alpha2.BindingFinalizer })
		return len(b.Finalizers) < before
	})
}

// change writes a binding that is being deleted, if f changes it. Without finalizers it deletes
// the binding.
func (a *APIs) change(ctx context.Context, c cluster.Name, name string, f func(*apisv1alpha2.APIBinding) bool) error {
	b := &apisv1alpha2.APIBinding{}
	rev, err := a.store.ReadInto(ctx, BindingResource().Key(c, "", name), b)
	if err != nil || rev == 0 || b.DeletionTimestamp == nil || !f(b) {
		return err
	}
	stored, err := values.Unstructured(b, apisv1alpha2.GroupVersion.WithKind("APIBinding"))
	if err != nil {
		return err
	}
	_, err = a.store.Commit(ctx, []store.Write{{Resource: BindingResource(), Cluster: c, Object: stored, Expect: rev, Delete: len(b.Finalizers) == 0}})
	return err
}
