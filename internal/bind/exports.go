package bind

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/storage"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/tenancy"
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
}

// An Exported is a resource of an export.
type Exported struct {
	schema.GroupResource
	// Schema is the name of the APIResourceSchema.
	Schema string
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
		out.Resources = append(out.Resources, Exported{schema.GroupResource{Group: r.Group, Resource: r.Name}, r.Schema})
	}
	return out, nil
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
	ref, key, err := a.identity(ctx, c, e)
	if err != nil {
		return err
	}
	settleIdentity(e, ref, key)
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
	ref, key, err := a.identity(ctx, c, e)
	if err != nil {
		return err
	}
	settleIdentity(e, ref, key)
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

// identity returns the secret of an export's identity, and the key in it, nil if there is
// none. For an export that names no secret it creates one.
func (a *APIs) identity(ctx context.Context, c cluster.Name, e *apisv1alpha2.APIExport) (corev1.SecretReference, []byte, error) {
	if e.Spec.Identity != nil && e.Spec.Identity.SecretRef != nil {
		ref := *e.Spec.Identity.SecretRef
		key, err := a.identityKey(ctx, c, ref)
		return ref, key, err
	}
	ref := corev1.SecretReference{Namespace: tenancy.ExportsNamespace, Name: e.Name}
	key, err := a.identityKey(ctx, c, ref)
	if err != nil || len(key) > 0 {
		return ref, key, err
	}
	if err := a.workspaces.MakeNamespace(ctx, c, ref.Namespace); err != nil {
		return ref, nil, err
	}
	_, err = a.store.Commit(ctx, []store.Write{{Resource: secrets(), Cluster: c, Object: &corev1.Secret{
		ObjectMeta: newMeta(ref.Namespace, ref.Name), Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{apisv1alpha2.IdentityKey: []byte(rand.Text() + rand.Text())},
	}}})
	if err != nil && !storage.IsExist(err) {
		return ref, nil, err
	}
	key, err = a.identityKey(ctx, c, ref)
	return ref, key, err
}

// newMeta returns the metadata of a new object.
func newMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uuid.NewUUID(), CreationTimestamp: metav1.Now().Rfc3339Copy()}
}

// settleIdentity sets the identity in the status of an export, by the key in its secret. The
// identity never changes.
func settleIdentity(e *apisv1alpha2.APIExport, ref corev1.SecretReference, key []byte) {
	e.Spec.Identity = &apisv1alpha2.Identity{SecretRef: &ref}
	c := conditions.Condition{Type: apisv1alpha2.IdentityValid, Status: metav1.ConditionTrue}
	fails := func(message string, args ...any) {
		c.Status, c.Severity, c.Reason = metav1.ConditionFalse, conditions.SeverityError, apisv1alpha2.IdentityVerificationFailed
		c.Message = fmt.Sprintf(message, args...)
	}
	hash := sha256.Sum256(key)
	identity := hex.EncodeToString(hash[:])
	switch {
	case len(key) == 0:
		fails("the secret %s/%s is missing or has no entry %q; create it, or leave out spec.identity", ref.Namespace, ref.Name, apisv1alpha2.IdentityKey)
	case e.Status.IdentityHash == "":
		e.Status.IdentityHash = identity
	case e.Status.IdentityHash != identity:
		fails("the secret %s/%s has another key than when the export was created; restore it: the identity of an export never changes", ref.Namespace, ref.Name)
	}
	e.Status.Conditions.Set(c)
}

func secrets() keys.Resource {
	return keys.NativeResource(schema.GroupResource{Resource: "secrets"})
}

// identityKey returns the key in the secret of an identity, nil if there is none.
func (a *APIs) identityKey(ctx context.Context, c cluster.Name, ref corev1.SecretReference) ([]byte, error) {
	at := secrets().Key(c, ref.Namespace, ref.Name)
	if at.Validate() != nil {
		return nil, nil // no secret has this name
	}
	o, _, err := a.store.Read(ctx, at)
	if err != nil || o == nil {
		return nil, err
	}
	secret, err := tenancy.Native[corev1.Secret](o)
	if err != nil {
		return nil, err
	}
	return secret.Data[apisv1alpha2.IdentityKey], nil
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
