package pods

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/unforked/kcp"
)

// parts returns the parts that a request concerns.
func (p *Pods) parts(ctx context.Context) (*workspace, error) {
	w, err := p.workspace(ctx, kcp.ClusterFrom(ctx), request.NamespaceValue(ctx))
	if err == nil && len(w.parts) > mostParts {
		return nil, apierrors.NewBadRequest("the workspace has pods in too many namespaces and physical clusters to list all of them at once; name a namespace")
	}
	return w, err
}

// each calls f for every part, some at a time and each within the deadline. It returns the errors.
func (p *Pods) each(ctx context.Context, parts []*part, f func(context.Context, *part) error) map[*part]error {
	failed := map[*part]error{}
	var mu sync.Mutex
	var all errgroup.Group
	all.SetLimit(mostAsked)
	for _, of := range parts {
		all.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, p.Deadline)
			defer cancel()
			if err := f(ctx, of); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed[of] = err
			}
			return nil
		})
	}
	_ = all.Wait() // f has no other errors
	return failed
}

// find returns the pod with a name in the workspace, as it is at its target, and a call to the
// target. The caller must end the call.
func (p *Pods) find(ctx context.Context, name string) (*call, *corev1.Pod, error) {
	w, err := p.parts(ctx)
	if err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex
	var found *call
	var pod *corev1.Pod
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := p.each(asking, w.parts, func(ctx context.Context, of *part) error {
		c, err := p.begin(ctx, of)
		if err != nil {
			return err
		}
		have, err := c.get(ctx, name)
		mu.Lock()
		defer mu.Unlock()
		if have == nil || err != nil || found != nil {
			c.end()
			return err
		}
		found, pod = c, have
		cancel()
		return nil
	})
	if found != nil {
		return found, pod, nil
	}
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	for _, err := range failed {
		return nil, nil, apierrors.NewServiceUnavailable(fmt.Sprintf("cannot tell whether pod %q exists: %v", name, err))
	}
	return nil, nil, apierrors.NewNotFound(core.Resource("pods"), name)
}

// get returns the pod with a name in the workspace, nil if this target does not have it.
func (c *call) get(ctx context.Context, name string) (*corev1.Pod, error) {
	if !c.exists {
		return nil, nil
	}
	pod, err := c.pods.Get(ctx, c.PhysicalName(name), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if c.Name(pod) != name || pod.Namespace != c.Physical {
		return nil, nil
	}
	return pod, nil
}
