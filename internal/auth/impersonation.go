package auth

import (
	"errors"
	"net/http"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
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
// is for its members only, and passes all others on to handler, which decides by
// RBAC whether the impersonation is allowed. It comes after authentication.
func WithImpersonationLimits(handler http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	limited := membersOnly()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wanted := r.Header[authenticationv1.ImpersonateGroupHeader]
		if len(wanted) == 0 {
			handler.ServeHTTP(w, r)
			return
		}
		u, ok := request.UserFrom(r.Context())
		if !ok {
			responsewriters.InternalError(w, r, errors.New("impersonation: the request has no user; authenticate it first"))
			return
		}
		for _, g := range wanted {
			if inGroup(u, user.SystemPrivilegedGroup) || !slices.Contains(limited, g) || inGroup(u, g) {
				continue
			}
			responsewriters.Forbidden(authorizer.AttributesRecord{
				User: u, Verb: "impersonate", Resource: "groups", Name: g, ResourceRequest: true,
			}, w, r, "only members of this group may impersonate it", s)
			return
		}
		handler.ServeHTTP(w, r)
	})
}
