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
		if resource, name, why := forbidden(r.Context(), u, r.Header); why != "" {
			responsewriters.Forbidden(authorizer.AttributesRecord{User: u, Verb: "impersonate", Resource: resource, Name: name, ResourceRequest: true}, w, r, why, s)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// forbidden returns a group, or a key of the extra, that the headers of a request impersonate
// although user u must not, and why. The texts are empty if there is none.
func forbidden(ctx context.Context, u user.Info, h http.Header) (resource, name, why string) {
	c, _ := cluster.From(ctx)
	if auth.PrivilegedIn(c, u) {
		return "", "", ""
	}
	limited := auth.MembersOnly()
	for _, g := range h[authenticationv1.ImpersonateGroupHeader] {
		if (slices.Contains(limited, g) || auth.IsViewGroup(g)) && !auth.InGroup(u, g) {
			return "groups", g, "only members of this group may impersonate it"
		}
	}
	admin := auth.InGroup(u, auth.AdminGroup) && auth.InScope(u, c)
	for header := range h {
		if key, ok := extraKey(header); ok && auth.ReservedExtra(key) && !(key == auth.ScopesKey && admin) {
			return "userextras", key, "only the system may set this key"
		}
	}
	return "", "", ""
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
		decision, reason, err := a.Authorize(ctx, unmarkedAttributes{attributes})
		if by, ok := ctx.Value(requestorKey{}).(*requestor); ok && decision == authorizer.DecisionAllow {
			by.allowed = append(by.allowed, attributes)
		}
		return decision, reason, err
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
			r = r.WithContext(request.WithUser(context.WithValue(r.Context(), requestorKey{}, &requestor{Info: u}), markedUser{u, c, requests.Add(1)}))
		}
		filter.ServeHTTP(w, r)
	})
}

type requestorKey struct{}

// A requestor is the user that a request with impersonation was authenticated as.
type requestor struct {
	user.Info
	allowed []authorizer.Attributes // that the filter asked for, in its order
}

// Requestor returns the user that a request with impersonation was authenticated as. It works in
// the handlers inside [WithImpersonation].
func Requestor(ctx context.Context) (user.Info, bool) {
	by, ok := ctx.Value(requestorKey{}).(*requestor)
	if !ok {
		return nil, false
	}
	return by.Info, true
}

// MayStillImpersonate reports whether a request with headers h may impersonate another user now. u
// is its requestor with their present groups. A request without impersonation needs no right.
func MayStillImpersonate(ctx context.Context, u user.Info, h http.Header, a authorizer.Authorizer) (bool, error) {
	by, ok := ctx.Value(requestorKey{}).(*requestor)
	if !ok || len(by.allowed) == 0 {
		return true, nil
	}
	if _, _, why := forbidden(ctx, u, h); why != "" {
		return false, nil
	}
	// The filter tries one mode after the other, until one allows everything.
	mode := modeOf(by.allowed[len(by.allowed)-1])
	for _, attributes := range by.allowed {
		if modeOf(attributes) != mode {
			continue
		}
		if decision, _, err := a.Authorize(ctx, As(attributes, u)); decision != authorizer.DecisionAllow {
			return false, err
		}
	}
	return true, nil
}

// modeOf returns the mode of impersonation that needs a right. The verbs are "impersonate",
// "impersonate:<mode>" and "impersonate-on:<mode>:<verb>".
func modeOf(a authorizer.Attributes) string {
	if parts := strings.Split(a.GetVerb(), ":"); len(parts) > 1 {
		return parts[1]
	}
	return ""
}

// arrived returns the user of a request behind the filter: the requestor, or the user that
// it impersonates. An impersonated user keeps the requestor's scopes.
func arrived(ctx context.Context, u user.Info) user.Info {
	if m, ok := u.(markedUser); ok {
		return m.Info
	}
	requestor, ok := Requestor(ctx)
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
