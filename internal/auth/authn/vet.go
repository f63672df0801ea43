package authn

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

// vetted returns the identity, in the cluster of the context, of a user that another party
// than this server authenticated. relayed is set for proxies and webhooks.
//
// The name of a service account means another account in each cluster. Only proxies and
// webhooks may return one, and only with the account's cluster.
//
// Likewise only proxies and webhooks may return scopes and warrants, as they repeat the
// result of another server.
func vetted(ctx context.Context, u user.Info, relayed bool) (user.Info, error) {
	if !relayed {
		u = withoutReservedExtra(u)
	}
	abroad, isAbroad := strings.CutPrefix(u.GetName(), auth.ForeignServiceAccountPrefix)
	if !isAbroad && !auth.IsServiceAccount(u) {
		return u, nil
	}
	if home := u.GetExtra()[auth.ClusterNameKey]; relayed && len(home) == 1 {
		n, err := cluster.ParseName(home[0])
		switch c, ok := cluster.From(ctx); {
		case err != nil:
		case isAbroad && strings.HasPrefix(abroad, home[0]+":"), auth.IsServiceAccount(u) && (!ok || c == n):
			return u, nil
		case auth.IsServiceAccount(u):
			return auth.Foreign(n, u), nil
		}
	}
	return nil, fmt.Errorf("%q is the name of a service account; only tokens of this server may authenticate one", u.GetName())
}

// withoutReservedExtra returns u without the reserved keys of its extra.
func withoutReservedExtra(u user.Info) user.Info {
	reserved := func(key string, _ []string) bool { return auth.ReservedExtra(key) }
	extra := maps.Clone(u.GetExtra())
	if maps.DeleteFunc(extra, reserved); len(extra) == len(u.GetExtra()) {
		return u
	}
	return &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra}
}

func vettedResponse(ctx context.Context, r *authenticator.Response, relayed bool) (*authenticator.Response, bool, error) {
	u, err := vetted(ctx, r.User, relayed)
	if err != nil {
		return nil, false, err
	}
	return &authenticator.Response{User: u, Audiences: r.Audiences}, true, nil
}

// vettedRequest and vettedToken return authenticators whose users are vetted.

func vettedRequest(a authenticator.Request, relayed bool) authenticator.Request {
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		r, ok, err := a.AuthenticateRequest(req)
		if err != nil || !ok {
			return nil, false, err
		}
		return vettedResponse(req.Context(), r, relayed)
	})
}

func vettedToken(a authenticator.Token, relayed bool) authenticator.Token {
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		r, ok, err := a.AuthenticateToken(ctx, token)
		if err != nil || !ok {
			return nil, false, err
		}
		return vettedResponse(ctx, r, relayed)
	})
}

// withoutViewGroups removes the groups of views from the users that a authenticates. No
// credentials may carry them.
func withoutViewGroups(a authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		r, ok, err := a.AuthenticateRequest(req)
		if err != nil || !ok || !slices.ContainsFunc(r.User.GetGroups(), auth.IsViewGroup) {
			return r, ok, err
		}
		u := &user.DefaultInfo{Name: r.User.GetName(), UID: r.User.GetUID(), Extra: r.User.GetExtra()}
		u.Groups = slices.DeleteFunc(slices.Clone(r.User.GetGroups()), auth.IsViewGroup)
		return &authenticator.Response{User: u, Audiences: r.Audiences}, true, nil
	})
}
