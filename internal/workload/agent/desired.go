package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/syncer"
)

// A desired has what the view of the target has. It keeps its last complete state while the server
// does not answer.
type desired struct {
	server      *server
	workloads   *kcp.Kind[*unstructured.Unstructured]
	assignments *kcp.Kind[*workload.Assignment]
	reports     *kcp.Kind[*workload.TargetStatus]
}

func newDesired(s *server) (*desired, error) {
	all, err := dynamic.NewForConfig(client.Cluster(s.config, "*"))
	if err != nil {
		return nil, err
	}
	assignments, err := client.New[*workload.Assignment, *workload.AssignmentList](s.config, "*", workload.GroupVersion.WithResource("assignments"))
	if err != nil {
		return nil, err
	}
	reports, err := client.New[*workload.TargetStatus, *workload.TargetStatusList](s.config, "*", workload.GroupVersion.WithResource("targetstatuses"))
	if err != nil {
		return nil, err
	}
	deployments := all.Resource(engine.Deployments())
	return &desired{server: s,
		workloads: kcp.NewKind[*unstructured.Unstructured]("workloads", &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return deployments.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return deployments.Watch(ctx, o)
			},
		}, nil),
		assignments: kindOf("assignments", assignments), reports: kindOf("targetstatuses", reports),
	}, nil
}

func kindOf[T client.Object, L client.List](name string, all *client.Client[T, L]) *kcp.Kind[T] {
	return kcp.NewKind[T](name, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return all.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return all.Watch(ctx, o)
		},
	}, nil)
}

// run follows the view until ctx ends.
func (d *desired) run(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { d.workloads.Run(ctx) })
	all.Go(func() { d.assignments.Run(ctx) })
	all.Go(func() { d.reports.Run(ctx) })
	all.Wait()
}

// engine returns the side of the engine that the workspaces are on.
func (d *desired) engine() engine.Desired {
	return engine.Desired{Workloads: d.workloads, Assignments: d.assignments, Reports: d.reports, Wakes: d.wakes(), Read: d.read, Report: d.report}
}

// wakes wakes the engine with the workloads of all that changes.
func (d *desired) wakes() kcp.Source {
	sources := []kcp.Source{
		d.workloads.Changed(),
		d.assignments.Wakes(func(a *workload.Assignment) []kcp.Key { return []kcp.Key{workloadOf(a, a.Spec.Workload)} }),
		d.reports.Wakes(func(r *workload.TargetStatus) []kcp.Key { return []kcp.Key{workloadOf(r, r.Spec.Workload)} }),
	}
	return kcp.Source{Ready: d.reports.Ready(), Subscribe: func(wake func(kcp.Key)) func() {
		var leave []func()
		for _, s := range sources {
			leave = append(leave, s.Subscribe(wake))
		}
		return func() {
			for _, f := range leave {
				f()
			}
		}
	}}
}

func workloadOf(o metav1.Object, of workload.WorkloadReference) kcp.Key {
	key := kcp.KeyOf(o)
	key.Name = of.Name
	return key
}

func path(cluster kcp.ClusterName, of schema.GroupVersionResource, namespace, name string) string {
	return fmt.Sprintf("/clusters/%s/apis/%s/%s/namespaces/%s/%s/%s", cluster, of.Group, of.Version, namespace, of.Resource, name)
}

// read reads a workload and the part of the target from the server.
func (d *desired) read(ctx context.Context, key kcp.Key) (*unstructured.Unstructured, *workload.Assignment, error) {
	var found syncer.Read
	of := engine.Deployments()
	err := d.server.call(ctx, "GET", path(key.Cluster, of, key.Namespace, key.Name), nil, &found)
	if missing(err, of.Resource, key.Name) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if found.Workload == nil || found.Assignment == nil {
		return nil, nil, errors.New("the server answers a read of a workload with something else")
	}
	a := &workload.Assignment{}
	return found.Workload, a, runtime.DefaultUnstructuredConverter.FromUnstructured(found.Assignment.Object, a)
}

// missing reports whether the server says that the target has no such workload. A server that says
// that it has no such view says nothing about workloads.
func missing(err error, resource, name string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	d := status.Status().Details
	return d != nil && d.Kind == resource && d.Name == name
}

// report writes or deletes a report.
func (d *desired) report(ctx context.Context, of kcp.Key, name string, report *workload.TargetStatus) error {
	at := path(of.Cluster, workload.GroupVersion.WithResource("targetstatuses"), of.Namespace, name)
	if report == nil {
		return d.server.call(ctx, "DELETE", at, nil, nil)
	}
	return d.server.call(ctx, "PUT", at, report, nil)
}
