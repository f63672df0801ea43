package authn

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

// DefaultIssuer is the default issuer of service account tokens.
const DefaultIssuer = "https://kcp.default.svc"

// ServiceAccountOptions configures how service account tokens are signed and verified. With
// its zero value a new key signs them, and no token is valid because no account is known.
type ServiceAccountOptions struct {
	// Key signs tokens. The default is a new one.
	Key crypto.Signer

	// VerifyKeys are further public keys that verify tokens.
	VerifyKeys []any

	// Issuers are the issuers of tokens. New tokens have the first; tokens of all are
	// accepted. The default is [DefaultIssuer].
	Issuers []string

	// Audiences are the audiences of the API server. The default is Issuers.
	Audiences authenticator.Audiences

	// NoLookup accepts tokens in secrets without looking up the secret and the account, so
	// they never expire. Other tokens are always looked up.
	NoLookup bool

	// ServiceAccount and Secret look an object up in the cluster of the context.
	ServiceAccount func(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	Secret         func(ctx context.Context, namespace, name string) (*corev1.Secret, error)

	// PatchSecret, if set, applies a JSON merge patch to a secret in the cluster of the
	// context. It records, once a day, that the token in the secret is in use.
	PatchSecret func(ctx context.Context, namespace, name string, patch []byte) error

	// Fresh, if set, is called before a token of an unknown account is refused.
	Fresh auth.Fresh

	// Current, if set, is called before a token is accepted on stored data.
	Current auth.Current
}

// ServiceAccounts signs and verifies service account tokens. A token holds the logical
// cluster of its account, and is verified against the objects in that cluster.
type ServiceAccounts struct {
	options ServiceAccountOptions
	keys    keyring
	tokens  authenticator.Token
}

var (
	_ authenticator.Token           = (*ServiceAccounts)(nil)
	_ serviceaccount.TokenGenerator = (*ServiceAccounts)(nil)
)

// NewServiceAccounts returns ServiceAccounts for o.
func NewServiceAccounts(o ServiceAccountOptions) (*ServiceAccounts, error) {
	if o.Key == nil {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		o.Key = key
	}
	if len(o.Issuers) == 0 {
		o.Issuers = []string{DefaultIssuer}
	}
	if len(o.Audiences) == 0 {
		o.Audiences = o.Issuers
	}
	s := &ServiceAccounts{options: o}
	if err := s.keys.set(o.Issuers[0], o.Key, o.VerifyKeys); err != nil {
		return nil, err
	}
	legacy, err := serviceaccount.NewLegacyValidator(!o.NoLookup, lookup{o}, lastUse{o})
	if err != nil {
		return nil, err
	}
	s.tokens = tokenunion.New(
		serviceaccount.JWTTokenAuthenticator([]string{serviceaccount.LegacyIssuer}, &s.keys, o.Audiences, remembering(s, legacy)),
		serviceaccount.JWTTokenAuthenticator(o.Issuers, &s.keys, o.Audiences, remembering(s, serviceaccount.NewValidator(lookup{o}))),
	)
	return s, nil
}

// Issuer returns the issuer of new tokens.
func (s *ServiceAccounts) Issuer() string { return s.options.Issuers[0] }

// Audiences returns the audiences of the API server.
func (s *ServiceAccounts) Audiences() authenticator.Audiences { return s.options.Audiences }

// Keys returns the keys that tokens are verified with.
func (s *ServiceAccounts) Keys() serviceaccount.PublicKeysGetter { return &s.keys }

// GenerateToken implements [serviceaccount.TokenGenerator] for an account in the cluster of
// the context.
func (s *ServiceAccounts) GenerateToken(ctx context.Context, claims *jwt.Claims, private any) (string, error) {
	c, err := cluster.One(ctx)
	if err != nil {
		return "", fmt.Errorf("sign a service account token: %w", err)
	}
	all, err := asObject(private)
	if err != nil {
		return "", fmt.Errorf("sign a service account token: private claims: %w", err)
	}
	inner, err := asObject(all[kubernetesClaim])
	if err != nil {
		return "", fmt.Errorf("sign a service account token: private claim %q: %w", kubernetesClaim, err)
	}
	if len(inner) == 0 {
		return "", fmt.Errorf("sign a service account token: the private claim %q, which names the account, is missing", kubernetesClaim)
	}
	inner[boundClusterClaim] = string(c)
	all[kubernetesClaim] = inner
	delete(all, legacyClusterClaim)
	return s.keys.boundToken(ctx, claims, all)
}

// LegacyToken returns a token for an account in the cluster of the context. It is valid as
// long as secret exists and holds it.
func (s *ServiceAccounts) LegacyToken(ctx context.Context, account *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	c, err := cluster.One(ctx)
	if err != nil {
		return "", fmt.Errorf("sign a service account token: %w", err)
	}
	claims, private := serviceaccount.LegacyClaims(*account, *secret)
	all, err := asObject(private)
	if err != nil {
		return "", fmt.Errorf("sign a service account token: private claims: %w", err)
	}
	all[legacyClusterClaim] = string(c)
	return s.keys.legacyToken(ctx, claims, all)
}

// asObject returns v as the fields of a JSON object. Values stay encoded, so that numbers
// keep their form.
func asObject(v any) (map[string]any, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	object := make(map[string]any, len(fields)+1)
	for k, raw := range fields {
		object[k] = raw
	}
	return object, nil
}

// lookup looks up the objects that a token is bound to, in the token's cluster.
type lookup struct{ o ServiceAccountOptions }

func (l lookup) GetServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	if l.o.ServiceAccount == nil {
		return nil, apierrors.NewNotFound(corev1.Resource("serviceaccounts"), name)
	}
	return l.o.ServiceAccount(ctx, namespace, name)
}

func (l lookup) GetSecret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	if l.o.Secret == nil {
		return nil, apierrors.NewNotFound(corev1.Resource("secrets"), name)
	}
	return l.o.Secret(ctx, namespace, name)
}

// GetPod always returns not found: a logical cluster has no pods of its own, so no valid
// token can be bound to one.
func (lookup) GetPod(_ context.Context, _, name string) (*corev1.Pod, error) {
	return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
}

// GetNode always returns not found, as GetPod.
func (lookup) GetNode(_ context.Context, name string) (*corev1.Node, error) {
	return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
}

// lastUse records in secrets when their token was last used.
type lastUse struct{ o ServiceAccountOptions }

func (l lastUse) Secrets(namespace string) typedcorev1.SecretInterface {
	return secretPatcher{patch: l.o.PatchSecret, namespace: namespace}
}

type secretPatcher struct {
	typedcorev1.SecretInterface // nil: the validator of legacy tokens only patches

	patch     func(ctx context.Context, namespace, name string, patch []byte) error
	namespace string
}

func (p secretPatcher) Patch(ctx context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*corev1.Secret, error) {
	if p.patch == nil {
		return nil, nil
	}
	return nil, p.patch(ctx, p.namespace, name, data)
}
