package authz

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

// WithImpersonationLimits passes requests on to handler, usually that of
// [WithImpersonation]. It answers 403 to requests that impersonate a group of membersOnly
// without being in it, or that set reserved keys in the user's extra. Members of
// [AdminGroup] may set [ScopesKey], which only takes rights away. Authentication must run
// first.
func WithImpersonationLimits(handler http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	limited := auth.MembersOnly()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !impersonates(r.Header) {
			handler.ServeHTTP(w, r)
			return
		}
		u, ok := request.UserFrom(r.Context())
		if !ok {
			responsewriters.InternalError(w, r, errors.New("impersonation: the request has no user; authenticate it first"))
			return
		}
		c, _ := cluster.From(r.Context())
		if auth.PrivilegedIn(c, u) {
			handler.ServeHTTP(w, r)
			return
		}
		admin := auth.InGroup(u, auth.AdminGroup) && auth.InScope(u, c)
		refuse := func(resource, name, why string) {
			responsewriters.Forbidden(authorizer.AttributesRecord{User: u, Verb: "impersonate", Resource: resource, Name: name, ResourceRequest: true}, w, r, why, s)
		}
		for _, g := range r.Header[authenticationv1.ImpersonateGroupHeader] {
			if (slices.Contains(limited, g) || auth.IsViewGroup(g)) && !auth.InGroup(u, g) {
				refuse("groups", g, "only members of this group may impersonate it")
				return
			}
		}
		for name := range r.Header {
			if key, ok := extraKey(name); ok && auth.ReservedExtra(key) && !(key == auth.ScopesKey && admin) {
				refuse("userextras", key, "only the system may set this key")
				return
			}
		}
		handler.ServeHTTP(w, r)
	})
}

// extraKey returns the key of the user's extra that a header sets, and whether it sets one.
func extraKey(header string) (string, bool) {
	escaped, ok := strings.CutPrefix(header, authenticationv1.ImpersonateUserExtraHeaderPrefix)
	if key, err := url.PathUnescape(strings.ToLower(escaped)); err == nil {
		return key, ok
	}
	return strings.ToLower(escaped), ok
}

// WithImpersonation is the impersonation filter of Kubernetes, for logical clusters. The
// filter caches for some seconds which user may impersonate which other, without the
// cluster. The owner of one workspace could then act as the owner of any other, and a
// revoked right would hold for seconds. So the filter gets requestors that differ per
// cluster and request. An impersonated user is in scope in the
// cluster of the request alone, unless the requestor is in system:masters.
func WithImpersonation(handler http.Handler, a authorizer.Authorizer, s runtime.NegotiatedSerializer) http.Handler {
	unmarked := authorizer.AuthorizerFunc(func(ctx context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
		return a.Authorize(ctx, unmarkedAttributes{attributes})
	})
	inner := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, ok := request.UserFrom(r.Context()); ok {
			r = r.WithContext(request.WithUser(r.Context(), arrived(r.Context(), u)))
		}
		handler.ServeHTTP(w, r)
	})
	filter := impersonation.WithConstrainedImpersonation(inner, unmarked, s)
	var requests atomic.Uint64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !impersonates(r.Header) {
			handler.ServeHTTP(w, r)
			return
		}
		if u, ok := request.UserFrom(r.Context()); ok {
			c, _ := cluster.From(r.Context())
			r = r.WithContext(request.WithUser(context.WithValue(r.Context(), requestorKey{}, u), markedUser{u, c, requests.Add(1)}))
		}
		filter.ServeHTTP(w, r)
	})
}

type requestorKey struct{}

// arrived returns the user of a request behind the filter: the requestor, or the user that
// it impersonates. An impersonated user keeps the requestor's scopes.
func arrived(ctx context.Context, u user.Info) user.Info {
	if m, ok := u.(markedUser); ok {
		return m.Info
	}
	requestor, ok := ctx.Value(requestorKey{}).(user.Info)
	if !ok {
		return u
	}
	c, _ := cluster.From(ctx)
	scopes := slices.Concat(u.GetExtra()[auth.ScopesKey], requestor.GetExtra()[auth.ScopesKey])
	if !auth.PrivilegedIn(c, requestor) {
		scopes = append(scopes, auth.ScopePrefix+string(c))
	}
	if len(scopes) == 0 {
		return u
	}
	extra := maps.Clone(u.GetExtra())
	if extra == nil {
		extra = map[string][]string{}
	}
	extra[auth.ScopesKey] = scopes
	return &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra}
}

func impersonates(h http.Header) bool {
	for name := range h {
		if strings.HasPrefix(name, "Impersonate-") {
			return true
		}
	}
	return false
}

// markPrefix begins the key of a mark.
const markPrefix = "request.kcp.io/"

// A markedUser is a user whose extra holds the cluster and the number of the request. They are
// in the key, not the value: the filter's cache of service accounts on nodes uses the keys
// alone.
type markedUser struct {
	user.Info
	cluster cluster.Name
	request uint64
}

func (u markedUser) GetExtra() map[string][]string {
	extra := maps.Clone(u.Info.GetExtra())
	if extra == nil {
		extra = map[string][]string{}
	}
	extra[markPrefix+string(u.cluster)+"/"+strconv.FormatUint(u.request, 10)] = nil
	return extra
}

func unmark(u user.Info) user.Info {
	if m, ok := u.(markedUser); ok {
		return m.Info
	}
	return u
}

// unmarkedAttributes are attributes without the mark, for an authorizer, which reads the
// cluster from the context. If the filter wrapped the user, the mark remains; the webhook
// authorizer removes it then.
type unmarkedAttributes struct{ authorizer.Attributes }

func (a unmarkedAttributes) GetUser() user.Info { return unmark(a.Attributes.GetUser()) }
