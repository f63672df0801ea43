// Package pods serves the pods of a workspace. They are not stored: each request queries the
// targets that run workloads of the workspace. The package hides which targets these are, how much they are
// asked at a time, and how the answers are merged.
//
// Every server answers, not only the one that runs the loops. Without requests, there is no
// goroutine and no connection.
package pods

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/answers"
)

// Pods serves pods. Call Start before the first request.
type Pods struct {
	reach  Reach
	limits *limits
	// Deadline is how long a target may take for an answer. The pod of a stream is found within it.
	Deadline time.Duration
	// Again is the time between two checks of an open stream or watch.
	Again time.Duration

	registers registers

	started atomic.Pointer[sources]
}

// deadline is the default of [Pods.Deadline].
const deadline = 5 * time.Second

// again is the default of [Pods.Again].
const again = 30 * time.Second

// New returns an instance that reaches targets with reach.
func New(reach Reach) *Pods {
	return &Pods{reach: reach, limits: newLimits(), Deadline: deadline, Again: again, registers: registers{of: map[kcp.ClusterName]*register{}}}
}

// Start tells p the server. view returns a configuration for the view of an export.
func (p *Pods) Start(s *kcp.Server, view func(home kcp.ClusterName, export string) (*rest.Config, error)) error {
	from := &sources{server: s, view: view}
	// The view has no objects but those of the export, whatever else a workspace calls SyncTargets.
	root, err := view("root", workload.Export)
	if err != nil {
		return err
	}
	if from.targets, err = client.New[*workload.SyncTarget, *workload.SyncTargetList](root, "*", workload.GroupVersion.WithResource("synctargets")); err != nil {
		return err
	}
	p.started.Store(from)
	return nil
}

// tenant returns the tenant of a workspace.
func (p *Pods) tenant(of kcp.ClusterName) kcp.ClusterName {
	if from := p.started.Load(); from != nil {
		return from.server.Tenant(of)
	}
	return of
}

func errStarting() error { return apierrors.NewServiceUnavailable("the server is starting") }

// workspace returns the parts of a workspace, of one namespace or of all.
func (p *Pods) workspace(ctx context.Context, c kcp.ClusterName, namespace string) (*workspace, error) {
	if kcp.SelectorFrom(ctx) != "" {
		return nil, apierrors.NewForbidden(Resource().GroupResource(), "", errors.New("a permission claim for some pods gives none: pods are not stored in the workspace; its owner can accept the claim for all pods"))
	}
	from := p.started.Load()
	if from == nil {
		return nil, errStarting()
	}
	if c == "" || c == "*" {
		return nil, apierrors.NewMethodNotSupported(Resource().GroupResource(), "list in all workspaces at once")
	}
	w := &workspace{cluster: c, namespace: namespace}
	var err error
	if w.compute = from.computeOf(c); w.compute == "" {
		return w, nil
	}
	cfg, err := from.view(w.compute, workload.KubernetesExport)
	if err != nil {
		return nil, err
	}
	w.assignments, err = client.New[*workload.Assignment, *workload.AssignmentList](cfg, string(c), workload.GroupVersion.WithResource("assignments"))
	if err != nil {
		return nil, err
	}
	w.assignments = w.assignments.Namespace(namespace)
	all, err := w.assignments.List(ctx, metav1.ListOptions{})
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) { // no consumer of the export, which may be gone
		w.assignments = nil
		return w, nil
	}
	if err != nil {
		return nil, err
	}
	in, err := from.targets.In(string(w.compute))
	if err != nil {
		return nil, err
	}
	targets, err := in.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	w.find(all.Items, targets.Items)
	return w, nil
}

// Compute returns the compute workspace of a consumer, empty if it has none.
func (p *Pods) Compute(_ context.Context, consumer kcp.ClusterName) (kcp.ClusterName, error) {
	from := p.started.Load()
	if from == nil {
		return "", errStarting()
	}
	return from.computeOf(consumer), nil
}

// results returns the results of a request for the pods of a workspace. The caller must call End.
func (p *Pods) results(w *workspace) *answers.Results {
	return p.limits.weights.Results(answers.Owners{Compute: p.tenant(w.compute), Consumer: p.tenant(w.cluster)})
}

// untilClosing calls end when the server closes, or once good reports false. The caller calls the result when
// end is not needed any more.
func (p *Pods) untilClosing(end func(), good func() bool) (done func()) {
	from := p.started.Load()
	if from == nil {
		return func() {}
	}
	closing, over := from.server.Closing(), make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		defer end()
		check := time.NewTicker(p.Again)
		defer check.Stop()
		for {
			select {
			case <-closing:
				return
			case <-over:
				return
			case <-check.C:
				if !good() {
					return
				}
			}
		}
	})
	return sync.OnceFunc(func() { close(over); work.Wait() })
}

// registered reports whether the target with a key is still a SyncTarget of a compute workspace, as it was at most half
// the time between two checks ago. While the server cannot tell, it is.
func (p *Pods) registered(ctx context.Context, compute kcp.ClusterName, key string) bool {
	from := p.started.Load()
	return from == nil || p.registers.at(compute, p.Again).has(key, p.Again/2, func() (map[string]bool, error) { return from.keys(ctx, compute) })
}
