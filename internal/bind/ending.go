package bind

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/values"
)

// Abandoned returns the resources of a binding that end with the binding. Other resources pass,
// with their objects, to a binding to an export of the same identity.
func (a *APIs) Abandoned(c cluster.Name, name string) []Bound {
	b := a.Bindings.Get(c, name)
	if b == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(b.Bound), func(r Bound) bool { return a.adopted(c, name, r) })
}

// adopted reports whether another binding of the cluster wants a resource of the same identity.
func (a *APIs) adopted(c cluster.Name, name string, r Bound) bool {
	for other, b := range a.Bindings.Of(c) {
		if other == name || b.Deleting {
			continue
		}
		e, ok := a.Exports.Get(b.Export.Cluster, "", b.Export.Name)
		if ok && !e.Deleting && e.Identity == r.Identity &&
			slices.ContainsFunc(e.Resources, func(x Exported) bool { return x.GroupResource == r.GroupResource }) {
			return true
		}
	}
	return false
}

// Report records why a binding that is being deleted still exists.
func (a *APIs) Report(ctx context.Context, c cluster.Name, name, reason, message string) error {
	return a.change(ctx, c, name, func(b *apisv1alpha2.APIBinding) bool {
		changed := b.Status.Conditions.Set(conditions.Condition{
			Type: apisv1alpha2.BindingResourceDeleteSuccess, Status: metav1.ConditionFalse, Severity: conditions.SeverityError, Reason: reason, Message: message,
		})
		return b.Status.Conditions.Set(ready(b.Status.Conditions, metav1.Now().Rfc3339Copy())) || changed
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
