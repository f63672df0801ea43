// Package admit validates and defaults the objects of authorized write requests. Every rule
// is a plain function in one table; one adapter makes the table a Kubernetes admission
// plugin.
package admit

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/etcd/outage"
)

// A Request is a write request in one cluster.
type Request struct {
	admission.Attributes
	Cluster cluster.Name
}

// A Rule is one admission rule.
type Rule struct {
	// Name of the plugin, as in the audit log.
	Name string
	// Mutate changes the new object, or returns an error to refuse the request. It may run
	// more than once per request. Optional.
	Mutate func(context.Context, Request) error
	// Validate returns an error to refuse the request. It sees the object as it will be
	// stored. Optional.
	Validate func(context.Context, Request) error
}

// Rules is a table of rules, in the order of their evaluation.
type Rules []Rule

var (
	_ admission.MutationInterface   = Rules{}
	_ admission.ValidationInterface = Rules{}
)

// Handles implements [admission.Interface].
func (Rules) Handles(admission.Operation) bool { return true }

// Admit implements [admission.MutationInterface].
func (r Rules) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return r.each(ctx, a, func(rule Rule) func(context.Context, Request) error { return rule.Mutate })
}

// Validate implements [admission.ValidationInterface].
func (r Rules) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return r.each(ctx, a, func(rule Rule) func(context.Context, Request) error { return rule.Validate })
}

func (r Rules) each(ctx context.Context, a admission.Attributes, part func(Rule) func(context.Context, Request) error) error {
	c, err := cluster.One(ctx)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	for _, rule := range r {
		if do := part(rule); do != nil {
			if err := do(ctx, Request{a, c}); err != nil {
				return outage.StatusIn(err)
			}
		}
	}
	return nil
}

// Is reports whether the request is for a resource or one of its subresources.
func (r Request) Is(gr schema.GroupResource) bool { return r.GetResource().GroupResource() == gr }

// Forbid refuses the request.
func (r Request) Forbid(why error) error { return admission.NewForbidden(r.Attributes, why) }

// Privileged reports whether the request comes from the system itself.
func (r Request) Privileged() bool {
	u := r.GetUserInfo()
	return u != nil && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}

// Object returns the metadata of the new object, or nil for a deletion.
func (r Request) Object() metav1.Object { return accessor(r.GetObject()) }

// Old returns the metadata of the stored object, or nil.
func (r Request) Old() metav1.Object { return accessor(r.GetOldObject()) }

func accessor(o any) metav1.Object {
	if o == nil {
		return nil
	}
	m, err := meta.Accessor(o)
	if err != nil {
		return nil // an object without metadata, as the options of a connect request
	}
	return m
}
