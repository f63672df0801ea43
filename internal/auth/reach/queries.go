// Package reach answers queries about workspaces: which ones a user may enter, which exports they
// may bind, why a request is refused, and what delays a workspace.
//
// The queries are outside of any logical cluster. Each answer contains only what its user may see.
package reach

import (
	"crypto/cipher"
	"encoding/json"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/mux"

	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/auth/authz"
	"github.com/unforked/kcp/internal/auth/lookup"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/edge"
	"github.com/unforked/kcp/internal/sharing/bind"
	"github.com/unforked/kcp/internal/tenancy"
	"github.com/unforked/kcp/internal/view"
)

// Paths of the queries. They belong to no cluster, and every authenticated user may get them.
const (
	reachablePath = view.Prefix + "reachableworkspaces"
	explainPath   = view.Prefix + "explainworkspace"
	inheritedPath = view.Prefix + "inheritedbindings"
	exportsPath   = view.Prefix + "bindableexports"
)

// Paths returns the paths of the queries. They have the prefix of the views.
func Paths() []string { return []string{reachablePath, explainPath, inheritedPath, exportsPath} }

// Queries answers queries. All fields are required.
type Queries struct {
	Authorizer *authz.Authorizer
	RBAC       *lookup.RBAC
	Workspaces *tenancy.Workspaces
	APIs       *bind.APIs

	seal cipher.AEAD // of continue tokens
}

// Install serves the queries. The list of paths at / does not contain them.
func (q *Queries) Install(mux *mux.PathRecorderMux) (err error) {
	if q.seal, err = newSeal(); err != nil {
		return err
	}
	for path, answer := range map[string]func(*http.Request, user.Info) (any, error){
		reachablePath: q.reachable, explainPath: q.explain, inheritedPath: q.inherited, exportsPath: q.exports,
	} {
		mux.UnlistedHandle(path, query(answer))
	}
	return nil
}

// query returns a handler that serves the result of answer as JSON.
func query(answer func(*http.Request, user.Info) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		u, ok := request.UserFrom(req.Context())
		_, inCluster := cluster.From(req.Context())
		switch {
		case !ok || inCluster: // in a cluster, RBAC of the cluster would decide
			http.NotFound(w, req)
			return
		case req.Method != http.MethodGet:
			edge.Refuse(w, req, apierrors.NewMethodNotSupported(schema.GroupResource{Group: tenancyapi.GroupVersion.Group, Resource: req.URL.Path}, req.Method))
			return
		}
		result, err := answer(req, u)
		if err != nil {
			edge.Refuse(w, req, err)
			return
		}
		text, err := json.Marshal(result)
		if err != nil {
			edge.Refuse(w, req, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(text) // fails only if the client has gone
	})
}
