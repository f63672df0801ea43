package bind

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/values"
)

// An Export is the decoded part of an APIExport.
type Export struct {
	Name string
	// Identity is empty before the export has one.
	Identity string
	// Secret is the namespace and name of the secret of the identity.
	Secret    types.NamespacedName
	Resources []Exported
	Claims    []apisv1alpha2.PermissionClaim
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
	if i := e.Spec.Identity; i != nil && i.SecretRef != nil {
		out.Secret = types.NamespacedName{Namespace: i.SecretRef.Namespace, Name: i.SecretRef.Name}
	}
	for _, r := range e.Spec.Resources {
		out.Resources = append(out.Resources, Exported{schema.GroupResource{Group: r.Group, Resource: r.Name}, r.Schema, virtualOf(r.Storage.Virtual), r.Storage.Native != nil})
	}
	return out, nil
}

// exportIdentity returns the identity of an export, empty if it does not exist or has none.
func (a *APIs) exportIdentity(name ExportName) string {
	e, ok := a.Exports.Get(name.Cluster, "", name.Name)
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
func (a *APIs) With(c cluster.Name, schema string) map[ExportName]bool {
	all := map[ExportName]bool{}
	for _, e := range a.Exports.List(c, "") {
		if slices.ContainsFunc(e.Resources, func(r Exported) bool { return r.Schema == schema }) {
			all[ExportName{c, e.Name}] = true
		}
	}
	for _, r := range a.Rollouts.List(c, "") {
		for _, s := range r.Stages {
			for _, name := range s.Schemas {
				if name == schema {
					all[ExportName{c, r.Export}] = true
				}
			}
		}
	}
	return all
}

// createExport stores a new APIExport with its identity and its APIExportEndpointSlice. It is a
// [store.CreateHook]. The secret of the identity is stored first: without it the objects of the
// export could never be proven to belong to it.
func (a *APIs) createExport(ctx context.Context, c cluster.Name, obj *unstructured.Unstructured) error {
	e, err := values.Typed[apisv1alpha2.APIExport](obj)
	if err != nil {
		return err
	}
	if err := a.settleExport(ctx, c, e); err != nil {
		return err
	}
	stored, err := values.Unstructured(e, apisv1alpha2.GroupVersion.WithKind("APIExport"))
	if err != nil {
		return err
	}
	slice, err := a.slice(ctx, c, e)
	if err != nil {
		return err
	}
	rev, err := a.store.Commit(ctx, append(slice, store.Write{Resource: ExportResource(), Cluster: c, Object: stored}))
	if err != nil {
		return err
	}
	return a.finish(ctx, c, stored, obj, rev)
}

// ReconcileExport checks the identity of an export against its secret.
func (a *APIs) ReconcileExport(ctx context.Context, c cluster.Name, name string) error {
	e := &apisv1alpha2.APIExport{}
	rev, err := a.store.ReadInto(ctx, ExportResource().Key(c, "", name), e)
	if err != nil || rev == 0 || e.DeletionTimestamp != nil {
		return err
	}
	before := e.DeepCopy()
	if err := a.settleExport(ctx, c, e); err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(before, e) {
		return nil
	}
	stored, err := values.Unstructured(e, apisv1alpha2.GroupVersion.WithKind("APIExport"))
	if err != nil {
		return err
	}
	_, err = a.store.Commit(ctx, []store.Write{{Resource: ExportResource(), Cluster: c, Object: stored, Expect: rev}})
	return err
}

// finish completes an object that Commit has stored, and waits until this process knows it.
func (a *APIs) finish(ctx context.Context, c cluster.Name, stored, obj *unstructured.Unstructured, rev int64) error {
	values.SetCluster(stored, c)
	stored.SetResourceVersion(a.store.ResourceVersion(rev))
	obj.Object = stored.Object
	return a.store.Feed().Await(ctx, rev)
}

// newMeta returns the metadata of a new object.
func newMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uuid.NewUUID(), CreationTimestamp: metav1.Now().Rfc3339Copy()}
}

// slice returns the write of the APIExportEndpointSlice of a new export. It returns none if
// there is one of its name, or the export wants none.
func (a *APIs) slice(ctx context.Context, c cluster.Name, e *apisv1alpha2.APIExport) ([]store.Write, error) {
	if _, skip := e.Annotations[apisv1alpha2.SkipEndpointSliceAnnotation]; skip {
		return nil, nil
	}
	if rev, _, err := a.store.Revision(ctx, SliceResource().Key(c, "", e.Name)); err != nil || rev != 0 {
		return nil, err
	}
	s := &apisv1alpha1.APIExportEndpointSlice{ObjectMeta: newMeta("", e.Name)}
	s.OwnerReferences = []metav1.OwnerReference{{APIVersion: apisv1alpha2.GroupVersion.String(), Kind: "APIExport", Name: e.Name, UID: e.UID}}
	s.Spec.APIExport = apisv1alpha2.ExportReference{Path: e.Annotations[core.PathAnnotation], Name: e.Name}
	for _, t := range []conditions.Type{apisv1alpha2.APIExportValid, apisv1alpha1.PartitionValid} {
		s.Status.Conditions.Set(conditions.Condition{Type: t, Status: metav1.ConditionTrue})
	}
	made, err := values.Unstructured(s, apisv1alpha1.GroupVersion.WithKind("APIExportEndpointSlice"))
	return []store.Write{{Resource: SliceResource(), Cluster: c, Object: made}}, err
}
