package server

import (
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
	"github.com/unforked/kcp/internal/tenancy"
)

// HomeWorkspaces says who has a home workspace. With its zero value everybody does who
// is authenticated.
type HomeWorkspaces struct {
	// Disabled leaves everybody without.
	Disabled bool
	// CreatorGroups are the groups whose members may have a home made for them.
	CreatorGroups []string
}

// creators returns the groups whose members may have homes made.
func (h HomeWorkspaces) creators() []string {
	switch {
	case h.Disabled:
		return nil
	case len(h.CreatorGroups) == 0:
		return []string{user.AllAuthenticated}
	default:
		return h.CreatorGroups
	}
}

var errNoHome = errors.New("may not have a home workspace")

// withHomes answers requests to root for the workspace "~" with the home of whoever asks,
// which is made if he may have one and has none. To see his own home he needs no
// right in root.
func (s *Server) withHomes(next http.Handler, a authorizer.Authorizer) http.Handler {
	if s.config.Homes.Disabled {
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
		home, err := s.workspaces.Home(ctx, u, func() error {
			if decision, _, err := decisive(a).Authorize(ctx, create); err != nil || decision != authorizer.DecisionAllow {
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
			refuse(w, req, err)
		default:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(home) // the client may have gone
		}
	})
}

func asksForHome(info *request.RequestInfo) bool {
	workspaces := tenancyapi.GroupVersion.WithResource("workspaces")
	return info.IsResourceRequest && info.Verb == "get" && info.Name == tenancy.HomeName && info.Subresource == "" &&
		info.APIGroup == workspaces.Group && info.APIVersion == workspaces.Version && info.Resource == workspaces.Resource
}
