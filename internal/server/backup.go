package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/build"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/edge"
)

// backupPath serves a backup of everything, to members of system:masters.
const backupPath = "/backup"

// orBackup adds backups to the requests that have no timeout.
func orBackup(longRunning request.LongRunningRequestCheck) request.LongRunningRequestCheck {
	return func(req *http.Request, info *request.RequestInfo) bool {
		return !info.IsResourceRequest && info.Path == backupPath || longRunning(req, info)
	}
}

// serveBackup streams a backup. A backup that fails halfway says so at its end.
func (s *Server) serveBackup(w http.ResponseWriter, req *http.Request) {
	u, ok := request.UserFrom(req.Context())
	_, inCluster := cluster.From(req.Context())
	switch {
	case !ok || inCluster:
		http.NotFound(w, req)
		return
	case !slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup): // it has the secrets of all tenants
		edge.Refuse(w, req, apierrors.NewForbidden(schema.GroupResource{Resource: "backup"}, "", errors.New("a backup has the secrets of all workspaces and needs the group system:masters")))
		return
	case req.Method != http.MethodGet:
		edge.Refuse(w, req, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "backup"}, req.Method))
		return
	}
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
