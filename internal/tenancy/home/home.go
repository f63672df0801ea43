// Package home answers requests for the workspace "~" in root with the home workspace of the user.
package home

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/observe/record"
	"github.com/unforked/kcp/internal/request/edge"
	"github.com/unforked/kcp/internal/tenancy"
)

// Options select the users who have a home workspace. The zero value gives one to
// every authenticated user.
type Options struct {
	// Disabled turns home workspaces off.
	Disabled bool
	// CreatorGroups are the groups whose members get a home workspace. Empty means
	// system:authenticated.
	CreatorGroups []string
}

// Creators returns the groups whose members may create their home.
func (o Options) Creators() []string {
	switch {
	case o.Disabled:
		return nil
	case len(o.CreatorGroups) == 0:
		return []string{user.AllAuthenticated}
	default:
		return o.CreatorGroups
	}
}

var errNoHome = errors.New("may not have a home workspace")

// With answers a get of the workspace "~" in root with the user's home. It creates
// the home if the user has none and may create one. Users need no right in root to get
// their home.
func (o Options) With(next http.Handler, a authorizer.Authorizer, home func(context.Context, user.Info, func() error) (*tenancyapi.Workspace, error)) http.Handler {
	if o.Disabled {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		c, _ := cluster.From(ctx)
		info, ok := request.RequestInfoFrom(ctx)
		if !ok || c != cluster.Root || !asksForHome(info) {
			next.ServeHTTP(w, req)
			return
		}
		u, _ := request.UserFrom(ctx)
		u = auth.Elsewhere(cluster.Root, u)
		create := authorizer.AttributesRecord{
			User: u, Verb: "create", APIGroup: info.APIGroup, APIVersion: info.APIVersion, Resource: info.Resource, Name: info.Name, ResourceRequest: true,
		}
		found, err := home(ctx, u, func() error {
			if decision, _, err := record.Decisive(a).Authorize(ctx, create); err != nil || decision != authorizer.DecisionAllow {
				return errNoHome
			}
			return nil
		})
		switch {
		case errors.Is(err, errNoHome) || errors.Is(err, tenancy.ErrHomeless):
			responsewriters.Forbidden(create, w, req, "workspace access not permitted", legacyscheme.Codecs)
		case errors.Is(err, tenancy.ErrHomeWaits):
			w.Header().Set("Retry-After", "1")
			http.Error(w, "Creating the home workspace", http.StatusTooManyRequests)
		case err != nil:
			edge.Refuse(w, req, err)
		default:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(found) // fails only if the client has gone
		}
	})
}

func asksForHome(info *request.RequestInfo) bool {
	workspaces := tenancyapi.GroupVersion.WithResource("workspaces")
	return info.IsResourceRequest && info.Verb == "get" && info.Name == tenancy.HomeName && info.Subresource == "" &&
		info.APIGroup == workspaces.Group && info.APIVersion == workspaces.Version && info.Resource == workspaces.Resource
}
