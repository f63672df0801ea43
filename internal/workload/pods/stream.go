package pods

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/workload/pods/stream"
)

// stream finds a pod and takes a slot for a stream. The stream ends when may says that the user has lost the
// right to it, which nil never does, when the workspace binds the pods of its compute workspace no longer, or when the
// target is not registered any more. The server itself checks the rights to the request.
func (s *store) stream(ctx context.Context, name string, may func(context.Context) error) (*stream.Stream, error) {
	at := kcp.ClusterFrom(ctx)
	leave, err := s.limits.enter(streaming(at), streamingOf(s.tenant(at)))
	if err != nil {
		return nil, err
	}
	c, pod, err := s.find(ctx, name)
	if err != nil {
		leave()
		return nil, err
	}
	c.budget.Release() // the pod is not kept
	ctx, cancel := context.WithCancel(ctx)
	done := s.untilClosing(cancel, func() bool {
		return s.started.Load().computeOf(at) == c.workspace.compute && s.registered(ctx, c.workspace.compute, c.Key) && (may == nil || !apierrors.IsForbidden(may(ctx)))
	})
	return s.streamOf(ctx, c, pod.Name, func() { cancel(); done(); c.end(); leave() }), nil
}

// streamOf returns a stream of a pod, by its name at the target.
func (s *store) streamOf(ctx context.Context, c *call, pod string, end func()) *stream.Stream {
	return &stream.Stream{
		Context: ctx, Close: end, Pod: c.locate(pod), Through: c.link.Through, Deadline: s.Deadline, Unreachable: c.unreachable, Refused: c.refused,
		Log: klog.FromContext(ctx).WithValues("cluster", c.workspace.compute, "target", c.target.Name),
	}
}

// streams returns the streams of pods.
func (s *store) streams() stream.Streams {
	return stream.Streams{Open: s.stream, Config: func(c kcp.ClusterName) (*rest.Config, error) {
		from := s.started.Load()
		if from == nil {
			return nil, errStarting()
		}
		return from.server.Own(string(c))
	}}
}
