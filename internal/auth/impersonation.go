package auth

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/unforked/kcp/internal/cluster"
)

// membersOnly returns the groups that nobody may take on by impersonation unless
// he is in them. They have rights beyond the cluster in which somebody may
// impersonate, and every owner of a workspace may impersonate in his.
func membersOnly() []string {
	return []string{
		user.SystemPrivilegedGroup,
		LogicalClusterAdminGroup,
		ExternalLogicalClusterAdminGroup,
		WorkspaceBootstrapperGroup,
		AdminGroup,
		user.AllAuthenticated,
	}
}

// WithImpersonationLimits answers 403 to requests that impersonate a group which
// is for its members only, or somebody with rights or a cluster of the impersonator's
// choice, and passes all others on to handler, usually that of [WithImpersonation].
// It comes after authentication.
func WithImpersonationLimits(handler http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	limited := membersOnly()
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
		if c, _ := cluster.From(r.Context()); privileged(c, u) {
			handler.ServeHTTP(w, r)
			return
		}
		refuse := func(resource, name, why string) {
			responsewriters.Forbidden(authorizer.AttributesRecord{User: u, Verb: "impersonate", Resource: resource, Name: name, ResourceRequest: true}, w, r, why, s)
		}
		for _, g := range r.Header[authenticationv1.ImpersonateGroupHeader] {
			if (slices.Contains(limited, g) || isLifecycleGroup(g)) && !inGroup(u, g) {
				refuse("groups", g, "only members of this group may impersonate it")
				return
			}
		}
		for name := range r.Header {
			if key, ok := extraKey(name); ok && reservedExtra(key) {
				refuse("userextras", key, "only the system says this of a user")
				return
			}
		}
		handler.ServeHTTP(w, r)
	})
}

// extraKey returns the key of a user's extra that a header impersonates, if it does.
func extraKey(header string) (string, bool) {
	escaped, ok := strings.CutPrefix(header, authenticationv1.ImpersonateUserExtraHeaderPrefix)
	if key, err := url.PathUnescape(strings.ToLower(escaped)); err == nil {
		return key, ok
	}
	return strings.ToLower(escaped), ok
}

// WithImpersonation is the impersonation filter of Kubernetes, for logical
// clusters. That one remembers for some seconds who was allowed to impersonate
// whom, but not where: the owner of one workspace could then act as the owner of
// any other. So it is shown requestors that differ from cluster to cluster. And who
// is impersonated is himself in the cluster of the request alone, unless
// system:masters impersonate him.
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
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !impersonates(r.Header) {
			handler.ServeHTTP(w, r)
			return
		}
		if u, ok := request.UserFrom(r.Context()); ok {
			c, _ := cluster.From(r.Context())
			r = r.WithContext(request.WithUser(context.WithValue(r.Context(), requestorKey{}, u), markedUser{u, c}))
		}
		filter.ServeHTTP(w, r)
	})
}

type requestorKey struct{}

// arrived returns who a request comes from behind the filter: the requestor himself,
// or whom he impersonates, who is himself where the requestor is and may do that.
func arrived(ctx context.Context, u user.Info) user.Info {
	if m, ok := u.(markedUser); ok {
		return m.Info
	}
	requestor, ok := ctx.Value(requestorKey{}).(user.Info)
	if !ok {
		return u
	}
	c, _ := cluster.From(ctx)
	scopes := slices.Concat(u.GetExtra()[ScopesKey], requestor.GetExtra()[ScopesKey])
	if !privileged(c, requestor) {
		scopes = append(scopes, ScopePrefix+string(c))
	}
	if len(scopes) == 0 {
		return u
	}
	extra := maps.Clone(u.GetExtra())
	if extra == nil {
		extra = map[string][]string{}
	}
	extra[ScopesKey] = scopes
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

// A markedUser is a user whose extra tells which cluster his request is for. The
// key tells it, not the value, because what is remembered about service accounts
// on nodes goes by the keys alone.
type markedUser struct {
	user.Info
	cluster cluster.Name
}

func (u markedUser) GetExtra() map[string][]string {
	extra := maps.Clone(u.Info.GetExtra())
	if extra == nil {
		extra = map[string][]string{}
	}
	extra[markPrefix+string(u.cluster)] = nil
	return extra
}

func unmark(u user.Info) user.Info {
	if m, ok := u.(markedUser); ok {
		return m.Info
	}
	return u
}

// unmarkedAttributes are attributes for an authorizer, which knows the cluster
// from the context. The filter may have wrapped the user; then the mark stays,
// which only webhooks could see, and it is taken off for them.
type unmarkedAttributes struct{ authorizer.Attributes }

func (a unmarkedAttributes) GetUser() user.Info { return unmark(a.Attributes.GetUser()) }
