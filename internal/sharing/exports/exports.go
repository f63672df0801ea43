// Package exports has the APIExports of all clusters. It hides what an export is made of: the secret
// behind its identity, its APIResourceSchemas with their APIConversions, and the APIExportRollouts
// that give some consumers other schemas. It reads no bindings.
package exports

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/define"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/tenancy"
)

// A Name names an export by cluster and name.
type Name struct {
	Cluster cluster.Name
	Name    string
}

// Exports are the exports of all clusters. Methods may be called concurrently.
type Exports struct {
	*feed.Table[*Export]
	// Rollouts has the APIExportRollouts of all clusters.
	Rollouts *feed.Table[*Rollout]

	schemas     *schemas
	conversions *conversions
	unions      unions
	store       *store.Store
	definitions *define.Definitions
	workspaces  *tenancy.Workspaces
}

// New returns the exports in a store, whose change feed must not have started. Creations of exports
// are complete when they return.
func New(s *store.Store, d *define.Definitions, w *tenancy.Workspaces) *Exports {
	x := &Exports{
		conversions: newConversions(s.Feed()), Table: newTable(s.Feed()).IndexBy(identityOf),
		Rollouts: feed.NewCustomTable(s.Feed(), RolloutResource(), rolloutOf).IndexBy(begun), schemas: newSchemas(s.Feed()),
		store: s, definitions: d, workspaces: w,
	}
	s.OnCreate(Resource(), InStorageVersion(Resource().GroupResource(), x.create))
	return x
}

func newTable(f *feed.Feed) *feed.Table[*Export] {
	return feed.NewTableSince(f, Resource(), exportOf, func(now, before *Export, at int64) {
		if now.Since = at; before != nil && now.published(before) {
			now.Since = before.Since
		}
	})
}

// An Export is the decoded part of an APIExport.
type Export struct {
	Name string
	// Identity is empty before the export has one.
	Identity string
	// Secret is the namespace and name of the secret of the identity.
	Secret    types.NamespacedName
	Resources []Exported
	Claims    []apisv1alpha2.PermissionClaim
	// Extra are the annotations of its bindings.
	Extra Extra
	// Limited tells that RBAC in the cluster of the export limits what its consumers may do.
	Limited  bool
	Deleting bool
	// Since is the revision at which the export got its identity and its virtual resources, at the
	// latest.
	Since int64
}

// published reports whether two exports publish the same virtual resources. Since does not count.
func (e *Export) published(other *Export) bool {
	stored := func(r Exported) bool { return r.Virtual == nil }
	return e.Identity == other.Identity && e.Deleting == other.Deleting && slices.EqualFunc(
		slices.DeleteFunc(slices.Clone(e.Resources), stored), slices.DeleteFunc(slices.Clone(other.Resources), stored),
		func(x, y Exported) bool { return x.GroupResource == y.GroupResource && *x.Virtual == *y.Virtual },
	)
}

// An Exported is a resource of an export.
type Exported struct {
	schema.GroupResource
	// Schema is the name of the APIResourceSchema.
	Schema string
	// Virtual is set if the objects are not stored in the clusters of consumers.
	Virtual *Virtual
	// Native is true for a kind of the server, which has no schema.
	Native bool
}

func exportOf(e *apisv1alpha2.APIExport) (*Export, error) {
	out := &Export{
		Name: e.Name, Identity: e.Status.IdentityHash, Claims: e.Spec.PermissionClaims, Deleting: e.DeletionTimestamp != nil,
		Limited: e.Spec.MaximalPermissionPolicy != nil && e.Spec.MaximalPermissionPolicy.Local != nil,
	}
	if extra := ExtraOf(e.Annotations); extra.Check() == nil {
		out.Extra = extra
	}
	if i := e.Spec.Identity; i != nil && i.SecretRef != nil {
		out.Secret = types.NamespacedName{Namespace: i.SecretRef.Namespace, Name: i.SecretRef.Name}
	}
	for _, r := range e.Spec.Resources {
		out.Resources = append(out.Resources, Exported{schema.GroupResource{Group: r.Group, Resource: r.Name}, r.Schema, virtualOf(r.Storage.Virtual), r.Storage.Native != nil})
	}
	return out, nil
}

// Has reports whether the export has a resource.
func (e *Export) Has(gr schema.GroupResource) bool {
	return slices.ContainsFunc(e.Resources, func(r Exported) bool { return r.GroupResource == gr })
}

// Identity returns the identity of an export, empty if it does not exist or has none.
func (x *Exports) Identity(name Name) string {
	e, ok := x.Get(name.Cluster, "", name.Name)
	if !ok {
		return ""
	}
	return e.Identity
}

// identityOf indexes exports by identity.
func identityOf(e *Export) []string {
	if e.Identity == "" {
		return nil
	}
	return []string{e.Identity}
}

// With returns the exports of a cluster that have a schema, or whose rollouts have it.
func (x *Exports) With(c cluster.Name, schema string) map[Name]bool {
	all := map[Name]bool{}
	for _, e := range x.List(c, "") {
		if slices.ContainsFunc(e.Resources, func(r Exported) bool { return r.Schema == schema }) {
			all[Name{c, e.Name}] = true
		}
	}
	for _, r := range x.Rollouts.List(c, "") {
		for _, s := range r.Stages {
			for _, name := range s.Schemas {
				if name == schema {
					all[Name{c, r.Export}] = true
				}
			}
		}
	}
	return all
}

// Read returns an APIExport as it is stored, nil if there is none.
func (x *Exports) Read(ctx context.Context, name Name) (*apisv1alpha2.APIExport, error) {
	e := &apisv1alpha2.APIExport{}
	rev, err := x.store.ReadInto(ctx, Resource().Key(name.Cluster, "", name.Name), e)
	if err != nil || rev == 0 {
		return nil, err
	}
	return e, nil
}

// create stores a new APIExport with its identity and its APIExportEndpointSlice. It is a
// [store.CreateHook]. The secret of the identity is stored first: without it the objects of the
// export could never be proven to belong to it.
func (x *Exports) create(ctx context.Context, c cluster.Name, obj *unstructured.Unstructured) error {
	e, err := values.Typed[apisv1alpha2.APIExport](obj)
	if err != nil {
		return err
	}
	if err := x.settleExport(ctx, c, e); err != nil {
		return err
	}
	stored, err := values.Unstructured(e, apisv1alpha2.GroupVersion.WithKind("APIExport"))
	if err != nil {
		return err
	}
	slice, err := x.slice(ctx, c, e)
	if err != nil {
		return err
	}
	rev, err := x.store.Commit(ctx, append(slice, store.Write{Resource: Resource(), Cluster: c, Object: stored}))
	if err != nil {
		return err
	}
	return x.store.FinishCreate(ctx, c, stored, obj, rev)
}

// Reconcile checks the identity of an export against its secret.
func (x *Exports) Reconcile(ctx context.Context, c cluster.Name, name string) error {
	e := &apisv1alpha2.APIExport{}
	rev, err := x.store.ReadInto(ctx, Resource().Key(c, "", name), e)
	if err != nil || rev == 0 || e.DeletionTimestamp != nil {
		return err
	}
	before := e.DeepCopy()
	if err := x.settleExport(ctx, c, e); err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(before, e) {
		return nil
	}
	stored, err := values.Unstructured(e, apisv1alpha2.GroupVersion.WithKind("APIExport"))
	if err != nil {
		return err
	}
	_, err = x.store.Commit(ctx, []store.Write{{Resource: Resource(), Cluster: c, Object: stored, Expect: rev}})
	return err
}

// slice returns the write of the APIExportEndpointSlice of a new export. It returns none if
// there is one of its name, or the export wants none.
func (x *Exports) slice(ctx context.Context, c cluster.Name, e *apisv1alpha2.APIExport) ([]store.Write, error) {
	if _, skip := e.Annotations[apisv1alpha2.SkipEndpointSliceAnnotation]; skip {
		return nil, nil
	}
	if rev, _, err := x.store.Revision(ctx, SliceResource().Key(c, "", e.Name)); err != nil || rev != 0 {
		return nil, err
	}
	s := &apisv1alpha1.APIExportEndpointSlice{ObjectMeta: values.NewMeta("", e.Name)}
	s.OwnerReferences = []metav1.OwnerReference{{APIVersion: apisv1alpha2.GroupVersion.String(), Kind: "APIExport", Name: e.Name, UID: e.UID}}
	s.Spec.APIExport = apisv1alpha2.ExportReference{Path: e.Annotations[core.PathAnnotation], Name: e.Name}
	s.Status.ExportClusterName = string(c)
	for _, t := range []conditions.Type{apisv1alpha2.APIExportValid, apisv1alpha1.PartitionValid} {
		s.Status.Conditions.Set(conditions.Condition{Type: t, Status: metav1.ConditionTrue})
	}
	made, err := values.Unstructured(s, apisv1alpha1.GroupVersion.WithKind("APIExportEndpointSlice"))
	return []store.Write{{Resource: SliceResource(), Cluster: c, Object: made}}, err
}
