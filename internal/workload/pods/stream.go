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
func (p *Pods) stream(ctx context.Context, name string, may func(context.Context) error) (*stream.Stream, error) {
	at := kcp.ClusterFrom(ctx)
	leave, err := p.limits.enter(streaming(at), streamingOf(p.tenant(at)))
	if err != nil {
		return nil, err
	}
	c, pod, err := p.find(ctx, name)
	if err != nil {
		leave()
		return nil, err
	}
	c.budget.Release() // the pod is not kept
	ctx, cancel := context.WithCancelCause(ctx)
	why := errStops
	done := p.untilClosing(func() { cancel(why) }, func() bool {
		switch {
		case p.started.Load().computeOf(at) != c.workspace.compute:
			why = errUnbound
		case !p.registered(ctx, c.workspace.compute, c.Key):
			why = errRemoved
		case may != nil && apierrors.IsForbidden(may(ctx)):
			why = errNoRight
		default:
			return true
		}
		return false
	})
	return p.streamOf(ctx, c, pod.Name, func() { cancel(nil); done(); c.end(); leave() }), nil
}

// streamOf returns a stream of a pod, by its name at the target. The cause of the end of ctx says why the stream ended.
func (p *Pods) streamOf(ctx context.Context, c *call, pod string, end func()) *stream.Stream {
	return &stream.Stream{
		Context: ctx, Close: end, Why: func() string { return p.why(ctx, c.workspace.cluster) }, Pod: c.locate(pod), Through: c.link.Through, Deadline: p.Deadline, Unreachable: c.unreachable, Refused: c.refused,
		Log: klog.FromContext(ctx).WithValues("cluster", c.workspace.compute, "target", c.target.Name),
	}
}

// streams returns the streams of pods.
func (p *Pods) streams() stream.Streams {
	return stream.Streams{Open: p.stream, Config: func(c kcp.ClusterName) (*rest.Config, error) {
		from := p.started.Load()
		if from == nil {
			return nil, errStarting()
		}
		return from.server.Own(string(c))
	}}
}
