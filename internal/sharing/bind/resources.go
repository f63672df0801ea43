package bind

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/define"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/tenancy"
)

// A Bound is a resource that a cluster has through a binding.
type Bound struct {
	schema.GroupResource
	// Schema is the name of the APIResourceSchema, UID its UID, and Identity that of the export.
	Schema, UID, Identity string
	// Virtual is true if the objects are not stored in the cluster.
	Virtual bool
}

// Resource returns where the objects of the resource are stored.
func (b Bound) Resource() keys.Resource { return keys.CustomResource(b.GroupResource, b.Identity) }

// bound returns what the binding gives its cluster, and makes the definitions of new schemas. It
// collects the conditions on which the decision depends.
func (s *settling) bound(ctx context.Context, name exports.Name, e *exports.Export) ([]apisv1alpha2.BoundResource, error) {
	before := s.binding.Status.BoundResources
	var all []apisv1alpha2.BoundResource
	taken := &takenError{}
	groups := sets.New[string]()
	for _, r := range e.Resources {
		now, err := s.Exports.Define(ctx, name, s.cluster, r)
		if err != nil {
			return nil, err
		}
		if !r.Native {
			s.relyOn(now.UID)
		}
		if !groups.Has(r.Group) {
			groups.Insert(r.Group)
			if err := s.reserve(ctx, r.Group); err != nil {
				return nil, err
			}
		}
		if why := s.conflict(keys.CustomResource(r.GroupResource, e.Identity), now.Names); why != "" {
			taken.conflicts = append(taken.conflicts, why)
			continue
		}
		now.IdentityHash = e.Identity
		b, err := boundTo(now, before)
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	if len(taken.conflicts) > 0 {
		return nil, taken
	}
	for _, b := range before { // what the export has no more stays, as its objects do
		if !slices.ContainsFunc(all, func(now apisv1alpha2.BoundResource) bool { return now.Group == b.Group && now.Resource == b.Resource }) {
			all = append(all, b)
		}
	}
	return all, nil
}

// boundTo returns what a binding has of a resource of an export. before is what it had.
func boundTo(now *exports.Definition, before []apisv1alpha2.BoundResource) (apisv1alpha2.BoundResource, error) {
	r := now.Exported
	b := apisv1alpha2.BoundResource{Group: r.Group, Resource: r.Resource, Schema: now.BoundSchema}
	if r.Virtual == nil {
		b.StorageVersions = []string{now.Version}
	}
	i := slices.IndexFunc(before, func(b apisv1alpha2.BoundResource) bool { return b.Group == r.Group && b.Resource == r.Resource })
	if i < 0 {
		return b, nil
	}
	if len(before[i].StorageVersions) > 0 != (r.Virtual == nil) || catalog.IsNativeSchema(before[i].Schema.UID) != r.Native {
		return b, exports.InvalidSchema(fmt.Sprintf("the APIExport has another storage for %s than when it was bound; delete this APIBinding and create it again", r.GroupResource))
	}
	for _, v := range before[i].StorageVersions { // objects may still be stored in them
		if !slices.Contains(b.StorageVersions, v) {
			b.StorageVersions = append(b.StorageVersions, v)
		}
	}
	return b, nil
}

// reserve adds the condition that no other write claims names in a group of the cluster
// meanwhile. It waits until this process knows the names that are claimed now.
func (s *settling) reserve(ctx context.Context, group string) error {
	claims := define.Claims(s.cluster, group)
	if slices.ContainsFunc(s.relies, func(c *store.Condition) bool { return c.On == claims }) {
		return nil // groups share keys
	}
	revision, at, err := s.store.Revision(ctx, claims)
	if err != nil {
		return err
	}
	s.relies = append(s.relies, &store.Condition{
		Of: BindingResource(), On: claims, Revision: revision, Advance: true,
		Renew: func(context.Context, int64) (int64, error) { return 0, errMoved },
	})
	return s.store.Feed().Await(ctx, at)
}

// relyOn adds the condition that the definition of a schema still exists.
func (s *settling) relyOn(uid string) {
	e, _ := s.definitions.BoundEvidence(uid)
	s.relies = append(s.relies, &store.Condition{
		Of: BindingResource(), On: e.Key, Revision: e.Revision, Renew: func(context.Context, int64) (int64, error) { return 0, errMoved },
	})
}

// conflict returns why the cluster cannot have a resource through the binding, "" if it can.
func (s *settling) conflict(r keys.Resource, names apiextensionsv1.CustomResourceDefinitionNames) string {
	gr, has := r.GroupResource(), func(name string) bool {
		b := s.Bindings.Get(s.cluster, name)
		return b != nil && slices.ContainsFunc(b.Bound, func(b Bound) bool { return b.Resource() == r })
	}
	if has(s.binding.Name) {
		return ""
	}
	other, _ := s.Bindings.Owner(s.cluster, gr)
	if other == s.from && has(s.from) {
		return "" // no other binding has taken it over
	}
	if other != "" {
		return fmt.Sprintf("%s is bound by APIBinding %s", gr, other)
	}
	if tenancy.IsGiven(gr) {
		return "" // the binding gives the cluster what it has
	}
	if why, by := s.definitions.NameConflict(s.cluster, r.Group, names); why != "" {
		return fmt.Sprintf("%s: %s; %s", gr, why, held(by))
	}
	return ""
}

// held says which objects of the cluster have names that a binding needs, and what to do.
func held(by []catalog.Holder) string {
	var names []string
	for _, h := range by {
		names = append(names, h.String())
	}
	have := " have them"
	if len(by) == 1 {
		have = " has them"
	}
	switch {
	case slices.Contains(by, catalog.Holder{}):
		return strings.Join(names, ", ") + have + ": delete this APIBinding, and ask the provider for a schema with other names"
	case len(by) == 1:
		return names[0] + have + ": delete it, or this APIBinding"
	}
	return strings.Join(names, ", ") + have + ": delete these, or this APIBinding"
}

// Holder implements [catalog.Source].
func (b *Bindings) Holder(c cluster.Name, gr schema.GroupResource) catalog.Holder {
	name, _ := b.Owner(c, gr)
	return catalog.Holder{Kind: "APIBinding", Name: name}
}

// Collect deletes the definition of a schema that no binding uses and that does not exist any
// more.
func (a *APIs) Collect(ctx context.Context, uid string) error {
	if a.Bindings.Uses(uid) {
		return nil
	}
	return a.Exports.Undefine(ctx, uid)
}
