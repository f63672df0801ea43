package authn

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	accounts "k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

// maxVerified limits the cached tokens with a verified signature, at about 2 KB each.
const maxVerified = 4096

// A verifiedToken is a token with a valid signature, which is costly to verify and never
// changes. Its expiry, and the objects that it is bound to, are checked on every use.
type verifiedToken struct {
	legacy    string // subject of a token without audiences
	audiences authenticator.Audiences
	validate  func(context.Context) (*accounts.ServiceAccountInfo, error)
}

// AuthenticateToken implements [authenticator.Token]. A request to any other cluster than
// that of the account, or to all, gets the account's foreign identity.
func (s *ServiceAccounts) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	home, ok := ClusterOfToken(token)
	if !ok {
		return nil, false, nil
	}
	// The claim is not verified yet. It has no effect unless the signature over the
	// same bytes is valid.
	r, ok, err := s.verify(cluster.With(ctx, home), token)
	if err != nil || !ok {
		return nil, false, err
	}
	u := &user.DefaultInfo{
		Name: r.User.GetName(), UID: r.User.GetUID(), Groups: r.User.GetGroups(),
		Extra: map[string][]string{auth.ClusterNameKey: {string(home)}},
	}
	for key, values := range r.User.GetExtra() {
		if key != auth.ClusterNameKey {
			u.Extra[key] = values
		}
	}
	if c, ok := cluster.From(ctx); ok && c != home {
		u = auth.Foreign(home, u)
	}
	return &authenticator.Response{User: u, Audiences: r.Audiences}, true, nil
}

// verify authenticates a token of the cluster of the context.
func (s *ServiceAccounts) verify(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	keys := s.keys.now.Load()
	remembered, ok := keys.verified.Get(sha256.Sum256([]byte(token)))
	if !ok {
		return s.tokens.AuthenticateToken(context.WithValue(ctx, keySetKey{}, keys), token)
	}
	v := remembered.(verifiedToken)
	if v.legacy != "" {
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token", v.legacy)
	}
	wanted, ok := authenticator.AudiencesFrom(ctx)
	if !ok {
		wanted = s.options.Audiences
	}
	common := v.audiences.Intersect(wanted)
	if len(common) == 0 {
		return nil, false, fmt.Errorf("the token is for the audiences %q, not for %q", v.audiences, wanted)
	}
	info, err := v.validate(ctx)
	if err != nil {
		return nil, false, err
	}
	return &authenticator.Response{User: info.UserInfo(), Audiences: common}, true, nil
}

// remembering returns a validator that calls v, and a second time on fresher data if there
// is any. It caches verified tokens. It only sees tokens with a valid signature, so forged
// tokens cannot delay the server or fill its memory.
func remembering[Claims any](s *ServiceAccounts, v serviceaccount.Validator[Claims]) serviceaccount.Validator[Claims] {
	return validatorFunc[Claims](func(ctx context.Context, token string, public *jwt.Claims, private *Claims) (*accounts.ServiceAccountInfo, error) {
		verified := verifiedToken{audiences: authenticator.Audiences(public.Audience)}
		if len(verified.audiences) == 0 {
			verified.legacy, verified.audiences = public.Subject, s.options.Audiences
		}
		verified.validate = func(ctx context.Context) (*accounts.ServiceAccountInfo, error) {
			info, err := v.Validate(ctx, token, public, private)
			if err == nil {
				again, stale := s.options.Current.Confirms(ctx)
				if stale != nil || !again {
					return info, stale
				}
				return v.Validate(ctx, token, public, private)
			}
			if public.Validate(jwt.Expected{Time: time.Now()}) != nil || !s.options.Fresh.CaughtUp(ctx) {
				return info, err
			}
			return v.Validate(ctx, token, public, private)
		}
		info, err := verified.validate(ctx)
		if keys, ok := ctx.Value(keySetKey{}).(*keySet); err == nil && ok {
			keys.verified.Add(sha256.Sum256([]byte(token)), verified)
		}
		return info, err
	})
}

type validatorFunc[Claims any] func(context.Context, string, *jwt.Claims, *Claims) (*accounts.ServiceAccountInfo, error)

func (f validatorFunc[Claims]) Validate(ctx context.Context, token string, public *jwt.Claims, private *Claims) (*accounts.ServiceAccountInfo, error) {
	return f(ctx, token, public, private)
}
