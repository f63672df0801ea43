package server

import (
	"encoding/json"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/view"
)

// Paths of what is answered for all clusters at once, to whoever asks and about what
// concerns him.
const (
	reachablePath = view.Prefix + "reachableworkspaces"
	explainPath   = view.Prefix + "explainworkspace"
	inheritedPath = view.Prefix + "inheritedbindings"
)

// questions are the paths that everybody who is authenticated may ask at. They are
// beside the views.
func questions() []string { return []string{reachablePath, explainPath, inheritedPath} }

// installQuestions serves them.
func (s *Server) installQuestions() {
	for path, answer := range map[string]func(*http.Request, user.Info) (any, error){
		reachablePath: s.reachable, explainPath: s.explain, inheritedPath: s.inherited,
	} {
		s.generic.Handler.NonGoRestfulMux.UnlistedHandle(path, question(answer))
	}
}

// question serves what answer returns.
func question(answer func(*http.Request, user.Info) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		u, ok := request.UserFrom(req.Context())
		_, inCluster := cluster.From(req.Context())
		switch {
		case !ok || inCluster: // there it would be the cluster's to say who gets an answer
			http.NotFound(w, req)
			return
		case req.Method != http.MethodGet:
			refuse(w, req, apierrors.NewMethodNotSupported(schema.GroupResource{Group: tenancyapi.GroupVersion.Group, Resource: req.URL.Path}, req.Method))
			return
		}
		result, err := answer(req, u)
		if err != nil {
			refuse(w, req, err)
			return
		}
		text, err := json.Marshal(result)
		if err != nil {
			refuse(w, req, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(text) // who went away needs no answer
	})
}
