package offline

import (
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/network/inprocess"
	"github.com/unforked/kcp/internal/request/edge"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// WithoutMissing answers 404 to lists and watches of system:masters in a logical cluster
// that does not exist. Authorization refuses the requests of other users there; the
// registries would answer these with an empty list.
func WithoutMissing(next http.Handler, s *store.Store) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		c, ok := cluster.From(ctx)
		info, known := request.RequestInfoFrom(ctx)
		if !ok || !known || c == cluster.All || c.System() || !info.IsResourceRequest || !slices.Contains([]string{"list", "watch", "deletecollection"}, info.Verb) || inprocess.IsLoop(ctx) {
			next.ServeHTTP(w, req)
			return
		}
		if u, ok := request.UserFrom(ctx); !ok || !slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
			next.ServeHTTP(w, req)
			return
		}
		switch state, err := s.State(ctx, c); {
		case err != nil:
			edge.Refuse(w, req, err)
		case state == store.Gone:
			edge.Refuse(w, req, apierrors.NewNotFound(tree.LogicalClusters().GroupResource(), string(c)))
		default:
			next.ServeHTTP(w, req)
		}
	})
}
