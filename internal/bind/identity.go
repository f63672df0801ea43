package bind

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
	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/store"
	"github.com/unforked/kcp/internal/tenancy"
)

// settleExport sets the identity of an export.
func (a *APIs) settleExport(ctx context.Context, c cluster.Name, e *apisv1alpha2.APIExport) error {
	of := identified{e.Name, "APIExport", &e.Spec.Identity, &e.Status.IdentityHash}
	valid, err := a.settleIdentity(ctx, c, of)
	if err == nil {
		e.Status.Conditions.Set(valid)
	}
	return err
}

// An identified is an object with an identity.
type identified struct {
	name, kind string
	spec       **apisv1alpha2.Identity
	hash       *string // in the status
}

// settleIdentity sets the identity in the status of an object, by the key in its secret. It
// returns the condition that says whether that is valid. The identity never changes.
func (a *APIs) settleIdentity(ctx context.Context, c cluster.Name, of identified) (conditions.Condition, error) {
	valid := conditions.Condition{Type: apisv1alpha2.IdentityValid, Status: metav1.ConditionTrue}
	ref, key, err := a.identity(ctx, c, of)
	if err != nil {
		return valid, err
	}
	fails := func(message string, args ...any) {
		valid.Status, valid.Severity, valid.Reason = metav1.ConditionFalse, conditions.SeverityError, apisv1alpha2.IdentityVerificationFailed
		valid.Message = fmt.Sprintf(message, args...)
	}
	*of.spec = &apisv1alpha2.Identity{SecretRef: &ref}
	hash := sha256.Sum256(key)
	identity := hex.EncodeToString(hash[:])
	switch {
	case len(key) == 0:
		fails("the secret %s/%s is missing or has no entry %q; create it, or leave out spec.identity", ref.Namespace, ref.Name, apisv1alpha2.IdentityKey)
	case *of.hash == "":
		*of.hash = identity
	case *of.hash != identity:
		fails("the secret %s/%s has another key than when the %s was created; restore it: its identity never changes", ref.Namespace, ref.Name, of.kind)
	}
	return valid, nil
}

// identity returns the secret of an object's identity, and the key in it, nil if there is
// none. For an object that names no secret it creates one.
func (a *APIs) identity(ctx context.Context, c cluster.Name, of identified) (corev1.SecretReference, []byte, error) {
	if i := *of.spec; i != nil && i.SecretRef != nil {
		key, err := a.identityKey(ctx, c, *i.SecretRef)
		return *i.SecretRef, key, err
	}
	ref := corev1.SecretReference{Namespace: tenancy.ExportsNamespace, Name: of.name}
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
