package auth

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/unforked/kcp/internal/cluster"
)

// vetted returns u, for whom somebody else than this server vouches, as the user to
// be in the cluster of the context.
//
// Nobody else makes service accounts. The name of one stands for another account in
// each cluster, so a user with such a name would be all of them at once. Only those
// who relay, which are proxies and webhooks, may name an account, if they say too
// which cluster it is from.
//
// Nor does anybody else say whose rights somebody has besides his own, or where he is
// himself: only those who relay repeat what a server has said of that.
func vetted(ctx context.Context, u user.Info, relayed bool) (user.Info, error) {
	if !relayed {
		u = withoutReservedExtra(u)
	}
	abroad, isAbroad := strings.CutPrefix(u.GetName(), ForeignServiceAccountPrefix)
	if !isAbroad && !isServiceAccount(u) {
		return u, nil
	}
	if home := u.GetExtra()[ClusterNameKey]; relayed && len(home) == 1 {
		n, err := cluster.ParseName(home[0])
		switch c, ok := cluster.From(ctx); {
		case err != nil:
		case isAbroad && strings.HasPrefix(abroad, home[0]+":"), isServiceAccount(u) && (!ok || c == n):
			return u, nil
		case isServiceAccount(u):
			return foreign(n, u), nil
		}
	}
	return nil, fmt.Errorf("%q is the name of a service account, and only this server's own tokens are for those", u.GetName())
}

// withoutReservedExtra returns u without what would give him the rights of others, or take
// him for somebody else.
func withoutReservedExtra(u user.Info) user.Info {
	reserved := func(key string, _ []string) bool { return reservedExtra(key) }
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

// reserved begins the names of users and groups with a meaning to the server.
const reserved = "system:"

// withoutReserved returns what a answers about users and groups that have no
// meaning to the server: users with a reserved name are refused, and reserved groups
// dropped. It is for identity providers of which the operator has not said that they
// may give out such names.
func withoutReserved(a authenticator.Token, names, groups bool) authenticator.Token {
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		r, ok, err := a.AuthenticateToken(ctx, token)
		if err != nil || !ok {
			return nil, false, err
		}
		if names && strings.HasPrefix(r.User.GetName(), reserved) {
			return nil, false, fmt.Errorf("the identity provider calls the user %q, and names that begin with %q are reserved; choose another --oidc-username-claim, or a prefix", r.User.GetName(), reserved)
		}
		if !groups {
			return r, true, nil
		}
		u := &user.DefaultInfo{Name: r.User.GetName(), UID: r.User.GetUID(), Extra: r.User.GetExtra()}
		u.Groups = slices.DeleteFunc(slices.Clone(r.User.GetGroups()), func(g string) bool { return strings.HasPrefix(g, reserved) })
		return &authenticator.Response{User: u, Audiences: r.Audiences}, true, nil
	})
}
