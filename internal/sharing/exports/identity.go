package exports

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/tenancy"
)

// settleExport sets the identity of an export.
func (x *Exports) settleExport(ctx context.Context, c cluster.Name, e *apisv1alpha2.APIExport) error {
	of := Identified{e.Name, "APIExport", &e.Spec.Identity, &e.Status.IdentityHash}
	valid, err := x.SettleIdentity(ctx, c, of)
	if err == nil {
		e.Status.Conditions.Set(valid)
	}
	return err
}

// An Identified is an object with an identity.
type Identified struct {
	Name, Kind string
	// Spec is the identity in the spec, and Hash that in the status.
	Spec **apisv1alpha2.Identity
	Hash *string
}

// SettleIdentity sets the identity in the status of an object, by the key in its secret. It
// returns the condition that says whether that is valid. The identity never changes.
func (x *Exports) SettleIdentity(ctx context.Context, c cluster.Name, of Identified) (conditions.Condition, error) {
	valid := conditions.Condition{Type: apisv1alpha2.IdentityValid, Status: metav1.ConditionTrue}
	ref, key, err := x.identitySecret(ctx, c, of)
	if err != nil {
		return valid, err
	}
	fails := func(message string, args ...any) {
		valid.Status, valid.Severity, valid.Reason = metav1.ConditionFalse, conditions.SeverityError, apisv1alpha2.IdentityVerificationFailed
		valid.Message = fmt.Sprintf(message, args...)
	}
	*of.Spec = &apisv1alpha2.Identity{SecretRef: &ref}
	hash := sha256.Sum256(key)
	identity := hex.EncodeToString(hash[:])
	switch {
	case len(key) == 0 && (ref.Namespace == "" || ref.Name == ""):
		fails("spec.identity.secretRef has no name or no namespace; set both")
	case len(key) == 0 && *of.Hash != "":
		fails("the secret %s/%s is missing or has no entry %q; restore it: the identity of the %s never changes", ref.Namespace, ref.Name, apisv1alpha2.IdentityKey, of.Kind)
	case len(key) == 0:
		fails("the secret %s/%s is missing or has no entry %q; create it, or leave out spec.identity", ref.Namespace, ref.Name, apisv1alpha2.IdentityKey)
	case *of.Hash == "":
		*of.Hash = identity
	case *of.Hash != identity:
		fails("the secret %s/%s has another key than when the %s was created; restore it: its identity never changes", ref.Namespace, ref.Name, of.Kind)
	}
	return valid, nil
}

// identitySecret returns the secret of an object's identity, and the key in it, nil if there is
// none. For an object that names no secret it creates one, unless the object has an identity: another
// key would stand in the way of the lost one.
func (x *Exports) identitySecret(ctx context.Context, c cluster.Name, of Identified) (corev1.SecretReference, []byte, error) {
	if i := *of.Spec; i != nil && i.SecretRef != nil {
		key, err := x.identityKey(ctx, c, *i.SecretRef)
		return *i.SecretRef, key, err
	}
	ref := corev1.SecretReference{Namespace: tenancy.ExportsNamespace, Name: of.Name}
	key, err := x.identityKey(ctx, c, ref)
	if err != nil || len(key) > 0 || *of.Hash != "" {
		return ref, key, err
	}
	if err := x.workspaces.MakeNamespace(ctx, c, ref.Namespace); err != nil {
		return ref, nil, err
	}
	_, err = x.store.Commit(ctx, []store.Write{{Resource: secrets(), Cluster: c, Object: &corev1.Secret{
		ObjectMeta: values.NewMeta(ref.Namespace, ref.Name), Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{apisv1alpha2.IdentityKey: []byte(rand.Text() + rand.Text())},
	}}})
	if err != nil && !storage.IsExist(err) {
		return ref, nil, err
	}
	key, err = x.identityKey(ctx, c, ref)
	return ref, key, err
}

func secrets() keys.Resource {
	return keys.NativeResource(schema.GroupResource{Resource: "secrets"})
}

// identityKey returns the key in the secret of an identity, nil if there is none.
func (x *Exports) identityKey(ctx context.Context, c cluster.Name, ref corev1.SecretReference) ([]byte, error) {
	at := secrets().Key(c, ref.Namespace, ref.Name)
	if at.Validate() != nil {
		return nil, nil // no secret has this name
	}
	o, _, err := x.store.Read(ctx, at)
	if err != nil || o == nil {
		return nil, err
	}
	secret, err := tenancy.Native[corev1.Secret](o)
	if err != nil {
		return nil, err
	}
	return secret.Data[apisv1alpha2.IdentityKey], nil
}
