package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/build"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/edge"
)

// Members of system:masters operate the database at these paths.
const (
	backupPath     = "/backup"     // GET returns a backup of everything
	defragmentPath = "/defragment" // POST defragments the database, and returns the sizes
)

// orOperation adds requests of operators to those that have no timeout.
func orOperation(longRunning request.LongRunningRequestCheck) request.LongRunningRequestCheck {
	return func(req *http.Request, info *request.RequestInfo) bool {
		return !info.IsResourceRequest && (info.Path == backupPath || info.Path == defragmentPath) || longRunning(req, info)
	}
}

// installOperatorPaths serves the operations of members of system:masters.
func (s *Server) installOperatorPaths() {
	paths := s.generic.Handler.NonGoRestfulMux
	paths.UnlistedHandleFunc(backupPath, forMasters(http.MethodGet, s.serveBackup))
	paths.UnlistedHandleFunc(defragmentPath, forMasters(http.MethodPost, s.serveDefragment))
}

// forMasters passes requests of members of system:masters with the given method to next.
func forMasters(method string, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		u, ok := request.UserFrom(req.Context())
		_, inCluster := cluster.From(req.Context())
		operation := schema.GroupResource{Resource: strings.TrimPrefix(req.URL.Path, "/")}
		switch {
		case !ok || inCluster:
			http.NotFound(w, req)
		case !slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup): // it concerns all workspaces, and their secrets
			edge.Refuse(w, req, apierrors.NewForbidden(operation, "", errors.New("this is for the group system:masters")))
		case req.Method != method:
			edge.Refuse(w, req, apierrors.NewMethodNotSupported(operation, req.Method))
		default:
			next(w, req)
		}
	}
}

// serveDefragment defragments the database, and returns the sizes.
func (s *Server) serveDefragment(w http.ResponseWriter, req *http.Request) {
	done, err := s.store.Defragment(req.Context())
	if err == nil {
		var text []byte
		if text, err = json.Marshal(done); err == nil {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(text) // fails only if the client has gone
			return
		}
	}
	edge.Refuse(w, req, apierrors.NewInternalError(err))
}

// serveBackup streams a backup. A backup that fails halfway ends with the error.
func (s *Server) serveBackup(w http.ResponseWriter, req *http.Request) {
	u, _ := request.UserFrom(req.Context())
	ctx, cancel := context.WithCancel(req.Context())
	defer cancel()
	defer context.AfterFunc(s.ctx, func() {
		cancel()
		// A client that does not read would delay the shutdown. In-process requests have no deadline.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now())
	})()
	w.Header().Set("Content-Type", "application/octet-stream")
	if err := s.Backup(ctx, w); err != nil {
		klog.FromContext(ctx).Error(err, "A backup was not completed", "user", u.GetName())
		return
	}
	klog.FromContext(ctx).Info("A backup was made", "user", u.GetName())
}

// Backup writes a backup of all objects at one revision.
func (s *Server) Backup(ctx context.Context, to io.Writer) error {
	return s.store.Backup(ctx, build.Read().Version, to)
}
