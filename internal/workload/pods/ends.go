package pods

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp"
	core "github.com/unforked/kcp/apis/core/v1alpha1"
	"github.com/unforked/kcp/client"
)

// Why the server ends an open stream. The cause of its context says so.
var (
	errStops   = errors.New("the server stops; connect again")
	errUnbound = errors.New("the workspace does not bind the compute workspace of the pod any more; bind it again")
	errRemoved = errors.New("the compute workspace, its export or the physical cluster of the pod was removed; use another pod, or bind another compute workspace")
	errNoRight = errors.New("the user has lost the right to the request; ask an administrator of the workspace for it")
)

// why returns the text for the client of a stream of a workspace that the server has ended, empty if the stream has not
// ended or the client has. ctx is that of the stream.
func (p *Pods) why(ctx context.Context, at kcp.ClusterName) string {
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(cause, context.Canceled) || errors.Is(cause, context.DeadlineExceeded) {
		return ""
	}
	if !errors.Is(cause, errStops) {
		if text := p.deleted(at); text != "" {
			return text
		}
	}
	return cause.Error()
}

// deleted returns a text that says that a workspace is deleted, empty if it is not, or if that is not known. The deletion
// takes the bindings and the rights of users with it, which end streams.
func (p *Pods) deleted(at kcp.ClusterName) string {
	from := p.started.Load()
	cfg, err := from.server.Own(string(at))
	if err != nil {
		return ""
	}
	all, err := client.New[*core.LogicalCluster, *core.LogicalClusterList](cfg, string(at), core.GroupVersion.WithResource("logicalclusters"))
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.Deadline)
	defer cancel()
	l, err := all.Get(ctx, core.LogicalClusterName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return "the workspace was deleted"
	case err == nil && l.DeletionTimestamp != nil:
		return "the workspace is being deleted"
	}
	return ""
}
