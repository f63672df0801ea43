package authn

import (
	"context"
	"crypto"
	"fmt"
	"sync"
	"sync/atomic"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/utils/lru"
)

// A keyring has the keys of service account tokens, which can change while they are in use.
type keyring struct {
	now atomic.Pointer[keySet]

	mu        sync.Mutex
	listeners []serviceaccount.Listener
}

// A keySet has the keys of one time, which never change.
type keySet struct {
	public        serviceaccount.PublicKeysGetter
	bound, legacy serviceaccount.TokenGenerator
	verified      *lru.Cache // by SHA-256 of a token that these keys verify: its verifiedToken
}

type keySetKey struct{}

var _ serviceaccount.PublicKeysGetter = (*keyring)(nil)

// set makes a key sign all further tokens. Tokens are valid if it or one of the others signed
// them.
func (r *keyring) set(issuer string, sign crypto.Signer, verify []any) error {
	next := keySet{verified: lru.New(maxVerified)}
	var err error
	if next.public, err = serviceaccount.StaticPublicKeysGetter(append([]any{sign.Public()}, verify...)); err != nil {
		return fmt.Errorf("keys that verify service account tokens: %w", err)
	}
	if next.bound, err = serviceaccount.JWTTokenGenerator(issuer, sign); err != nil {
		return fmt.Errorf("key that signs service account tokens: %w", err)
	}
	if next.legacy, err = serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, sign); err != nil {
		return fmt.Errorf("key that signs service account tokens: %w", err)
	}
	r.now.Store(&next)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.listeners {
		l.Enqueue()
	}
	return nil
}

// AddListener implements [serviceaccount.PublicKeysGetter].
func (r *keyring) AddListener(l serviceaccount.Listener) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listeners = append(r.listeners, l)
}

// GetCacheAgeMaxSeconds implements [serviceaccount.PublicKeysGetter].
func (r *keyring) GetCacheAgeMaxSeconds() int { return r.now.Load().public.GetCacheAgeMaxSeconds() }

// GetPublicKeys implements [serviceaccount.PublicKeysGetter].
func (r *keyring) GetPublicKeys(ctx context.Context, keyIDHint string) []serviceaccount.PublicKey {
	return r.now.Load().public.GetPublicKeys(ctx, keyIDHint)
}

// boundToken and legacyToken sign with the present key.

func (r *keyring) boundToken(ctx context.Context, claims *jwt.Claims, private any) (string, error) {
	return r.now.Load().bound.GenerateToken(ctx, claims, private)
}

func (r *keyring) legacyToken(ctx context.Context, claims *jwt.Claims, private any) (string, error) {
	return r.now.Load().legacy.GenerateToken(ctx, claims, private)
}

// Rotate makes sign the key of all further tokens. Tokens of the keys in verify stay valid. Tokens
// signed by any other key become invalid.
func (s *ServiceAccounts) Rotate(sign crypto.Signer, verify []any) error {
	return s.keys.set(s.Issuer(), sign, verify)
}
