// Package pods serves the pods of a workspace. They are not stored: each request queries the
// targets that run workloads of the workspace. The package hides how the answers are merged,
// what a tenant sees of a target, and how logs and streams pass through.
//
// Every server answers, not only the one that runs the loops. Without requests, there is no
// goroutine and no connection.
package pods

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/pods/shown"
)

// Resource is the resource that this package serves.
func Resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "pods"}
}

// MetricsResource is the resource of the usage of pods, which this package serves, too.
func MetricsResource() schema.GroupVersionResource {
	return metricsv1beta1.SchemeGroupVersion.WithResource("pods")
}

// A Reach returns the way to the physical cluster of a SyncTarget. It is called for each request,
// and on every server. It does not wait for the physical cluster.
type Reach func(ctx context.Context, compute kcp.ClusterName, t *workload.SyncTarget) (*Link, error)

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

// sources are what the pods of a workspace are found from.
type sources struct {
	server  *kcp.Server
	view    func(home kcp.ClusterName, export string) (*rest.Config, error)
	targets *client.Client[*workload.SyncTarget, *workload.SyncTargetList]
}

// deadline is the default of [Pods.Deadline].
const deadline = 5 * time.Second

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

// A part is what one target runs of one namespace of a workspace.
type part struct {
	shown.Origin
	workspace *workspace
	target    *workload.SyncTarget
	replicas  int32 // that are assigned
}

// part returns a part of the workspace, which runs at a target.
func (w *workspace) part(from shown.Origin, target *workload.SyncTarget) *part {
	p := &part{Origin: from, workspace: w, target: target}
	p.Physical = p.locator().Physical()
	return p
}

// locator returns where the objects of the part are from.
func (p *part) locator() engine.Locator {
	return engine.Locator{Cluster: string(p.workspace.cluster), Namespace: p.Namespace, Target: p.Key}
}

// A workspace is what is known about the workspace of a request.
type workspace struct {
	cluster, compute kcp.ClusterName
	namespace        string // of the request, empty for all
	assignments      *client.Client[*workload.Assignment, *workload.AssignmentList]
	parts            []*part
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

// computeOf returns the compute workspace whose export gives pods to a workspace, empty if there is
// none.
func (s *sources) computeOf(c kcp.ClusterName) kcp.ClusterName {
	home, export, ok := s.server.Bound(c, Resource().GroupResource())
	if !ok || export != workload.KubernetesExport {
		return ""
	}
	return home
}

// find fills the parts from the Assignments of the workspace and the targets of the compute
// workspace.
func (w *workspace) find(all []workload.Assignment, targets []workload.SyncTarget) {
	byKey := map[string]*workload.SyncTarget{}
	for i := range targets {
		t := &targets[i]
		byKey[keyOf(w.compute, t)] = t
	}
	parts, workloads := map[[2]string]*part{}, shown.NewWorkloads(all)
	for _, a := range all {
		for _, t := range a.Spec.Targets {
			if byKey[t.Key] == nil {
				continue // it was unregistered
			}
			at := [2]string{a.Namespace, t.Key}
			if parts[at] == nil {
				parts[at] = w.part(shown.Origin{Namespace: a.Namespace, Key: t.Key, Location: t.Location, Workloads: workloads}, byKey[t.Key])
				w.parts = append(w.parts, parts[at])
			}
			if t.Replicas != nil {
				parts[at].replicas += *t.Replicas
			}
		}
	}
	slices.SortFunc(w.parts, func(a, b *part) int {
		return slices.Compare([]string{a.Namespace, a.Key}, []string{b.Namespace, b.Key})
	})
}
