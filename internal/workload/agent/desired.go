package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/profile"
	"github.com/unforked/kcp/internal/workload/syncer"
)

// A desired has what the view of the target has. It keeps its last complete state while the server
// does not answer. It implements [engine.Desired].
type desired struct {
	server      *server
	key         string                                // of the target
	items       *kcp.Kind[*unstructured.Unstructured] // see [syncer.Item]
	assignments *kcp.Kind[*workload.Assignment]
	reports     *kcp.Kind[*workload.TargetStatus]
	custom      *kcp.Kind[*workload.ResourceProfile]
	shipped     []profile.Profile
	ready       chan struct{} // closed when the caches are complete
	running     sync.WaitGroup
}

// Indexes of the caches.
const (
	byNeed      = "need"      // of items, by what they refer to
	byResource  = "resource"  // of Assignments
	byNamespace = "namespace" // of Assignments
)

// newDesired returns what the view has once run has read it. Its watches end with ctx.
func newDesired(ctx context.Context, s *server, key string) (*desired, error) {
	d := &desired{server: s, key: key, ready: make(chan struct{}), shipped: slices.Concat(profile.Shipped(), profile.Dependencies())}
	v, err := newView(ctx, s, d.running.Go)
	if err != nil {
		return nil, err
	}
	d.items = v.items()
	if d.assignments, err = kindOf[*workload.Assignment, *workload.AssignmentList](v, "Assignment", "assignments"); err != nil {
		return nil, err
	}
	if d.reports, err = kindOf[*workload.TargetStatus, *workload.TargetStatusList](v, "TargetStatus", "targetstatuses"); err != nil {
		return nil, err
	}
	if d.custom, err = kindOf[*workload.ResourceProfile, *workload.ResourceProfileList](v, "ResourceProfile", "resourceprofiles"); err != nil {
		return nil, err
	}
	return d, d.index()
}

func (d *desired) index() error {
	err := d.items.Index(byNeed, func(o *unstructured.Unstructured) (keys []string) {
		i, _ := syncer.ItemOf(o)
		for _, of := range i.Needs {
			keys = append(keys, needKey(of))
		}
		return keys
	})
	if err != nil {
		return err
	}
	err = d.assignments.Index(byResource, func(a *workload.Assignment) []string {
		return []string{engine.IDFor(a, a.Spec.Workload).GroupResource.String()}
	})
	if err != nil {
		return err
	}
	return d.assignments.Index(byNamespace, func(a *workload.Assignment) []string {
		return []string{namespaceKey(kcp.KeyOf(a).Cluster, a.Namespace)}
	})
}

func namespaceKey(cluster kcp.ClusterName, namespace string) string {
	return string(cluster) + "/" + namespace
}

func needKey(id engine.ID) string {
	return namespaceKey(id.Key.Cluster, id.Key.Namespace) + "/" + id.GroupResource.String() + "/" + id.Key.Name
}

// run follows the view until ctx ends.
func (d *desired) run(ctx context.Context) {
	d.running.Go(func() { d.items.Run(ctx) })
	d.running.Go(func() { d.assignments.Run(ctx) })
	d.running.Go(func() { d.reports.Run(ctx) })
	d.running.Go(func() { d.custom.Run(ctx) })
	d.running.Go(func() {
		for _, ready := range []<-chan struct{}{d.items.Ready(), d.assignments.Ready(), d.reports.Ready(), d.custom.Ready()} {
			select {
			case <-ready:
			case <-ctx.Done():
				return
			}
		}
		close(d.ready)
	})
	d.running.Wait()
}

// await waits until the caches are complete. It reports false if ctx ends before.
func (d *desired) await(ctx context.Context) bool {
	select {
	case <-d.ready:
		return true
	case <-ctx.Done():
		return false
	}
}

// Wakes implements [engine.Desired].
func (d *desired) Wakes() kcp.Source {
	sources := []kcp.Source{
		d.items.Wakes(func(o *unstructured.Unstructured) (tasks []kcp.Key) {
			i, ok := syncer.ItemOf(o)
			if !ok {
				return nil
			}
			for _, of := range i.Needs {
				tasks = append(tasks, of.Task())
			}
			return append(tasks, i.Task())
		}),
		d.assignments.Wakes(func(a *workload.Assignment) []kcp.Key { return []kcp.Key{engine.IDFor(a, a.Spec.Workload).Task()} }),
		d.reports.Wakes(func(r *workload.TargetStatus) []kcp.Key { return []kcp.Key{engine.IDFor(r, r.Spec.Workload).Task()} }),
		d.custom.Wakes(func(r *workload.ResourceProfile) (tasks []kcp.Key) {
			for _, key := range d.assignments.By(byResource, profileOf(r).GroupResource().String()) {
				if a := d.assignments.Get(key); a != nil {
					tasks = append(tasks, engine.IDFor(a, a.Spec.Workload).Task())
				}
			}
			return tasks
		}),
	}
	return kcp.Source{Ready: d.ready, Subscribe: func(wake func(kcp.Key)) func() {
		var leave []func()
		for _, s := range sources {
			leave = append(leave, s.Subscribe(wake))
		}
		return func() {
			for _, f := range leave {
				if f != nil {
					f()
				}
			}
		}
	}}
}

// Found implements [engine.Desired]. The server reads what it is asked about.
func (d *desired) Found() {}

func profileOf(r *workload.ResourceProfile) *profile.Profile {
	p := profile.Of(r)
	return &p
}

// Profiles implements [engine.Desired].
func (d *desired) Profiles() []profile.Profile {
	all := slices.Clone(d.shipped)
	for _, r := range d.custom.List("*") {
		all = append(all, profile.Of(r))
	}
	return all
}

// Profile implements [engine.Desired].
func (d *desired) Profile(of schema.GroupResource) *profile.Profile {
	for i := range d.shipped {
		if p := &d.shipped[i]; p.GroupResource() == of {
			return p
		}
	}
	for _, r := range d.custom.List("*") {
		if p := profileOf(r); p.GroupResource() == of {
			return p
		}
	}
	return nil
}

func (d *desired) assignmentKey(id engine.ID) kcp.Key {
	key := id.Key
	key.Name = engine.AssignmentName(id.GroupResource, key.Name)
	return key
}

// Workload implements [engine.Desired].
func (d *desired) Workload(id engine.ID) *unstructured.Unstructured {
	if o := d.items.Get(d.assignmentKey(id)); o != nil {
		if i, ok := syncer.ItemOf(o); ok && i.ID == id {
			return i.Object
		}
	}
	return nil
}

// Assignment implements [engine.Desired].
func (d *desired) Assignment(id engine.ID) *workload.Assignment {
	return d.assignments.Get(d.assignmentKey(id))
}

// Status implements [engine.Desired].
func (d *desired) Status(id engine.ID) *workload.TargetStatus {
	key := id.Key
	key.Name = engine.StatusName(id.GroupResource, key.Name, d.key)
	return d.reports.Get(key)
}

// Placed implements [engine.Desired].
func (d *desired) Placed(cluster kcp.ClusterName, namespace string) (all []*workload.Assignment) {
	for _, key := range d.assignments.By(byNamespace, namespaceKey(cluster, namespace)) {
		if a := d.assignments.Get(key); a != nil {
			all = append(all, a)
		}
	}
	return all
}

// Has implements [engine.Desired].
func (d *desired) Has(of schema.GroupResource) bool {
	return len(d.assignments.By(byResource, of.String())) > 0
}

// Tenant implements [engine.Desired]. The agent does not know which logical clusters belong together.
func (d *desired) Tenant(of kcp.ClusterName) kcp.ClusterName { return of }

// Users implements [engine.Desired].
func (d *desired) Users(id engine.ID) (users []engine.ID) {
	for _, key := range d.items.By(byNeed, needKey(id)) {
		if o := d.items.Get(key); o != nil {
			if i, ok := syncer.ItemOf(o); ok {
				users = append(users, i.ID)
			}
		}
	}
	return users
}

// path returns the path of an object in the view.
func path(as string, id engine.ID) string {
	return fmt.Sprintf("/clusters/%s/apis/%s/namespaces/%s/%s/%s/%s", id.Key.Cluster, workload.GroupVersion, id.Key.Namespace, as, id.Key.Name, id.GroupResource)
}

// Read implements [engine.Desired].
func (d *desired) Read(ctx context.Context, id engine.ID) (*unstructured.Unstructured, *workload.Assignment, error) {
	var found syncer.Read
	err := d.server.call(ctx, "GET", path(syncer.Workloads, id), nil, &found)
	if missing(err, syncer.Workloads, id.Key.Name) {
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

// Dependency implements [engine.Desired].
func (d *desired) Dependency(ctx context.Context, id engine.ID) (*unstructured.Unstructured, string, bool, error) {
	var found syncer.DependencyRead
	if err := d.server.call(ctx, "GET", path(syncer.Dependencies, id), nil, &found); err != nil {
		return nil, "", false, err
	}
	if found.Object == nil && found.Why == "" {
		return nil, "", false, errors.New("the server answers a read of a dependency with something else")
	}
	return found.Object, found.Why, found.Withdrawn, nil
}

// Unused implements [engine.Desired].
func (d *desired) Unused(ctx context.Context, id engine.ID) (bool, error) {
	var found syncer.UnusedRead
	err := d.server.call(ctx, "GET", path(syncer.Unused, id), nil, &found)
	return found.Unused && err == nil, err
}

// missing reports whether the server says that the target has no such workload. A server without
// such a view gives no answer about workloads.
func missing(err error, resource, name string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	d := status.Status().Details
	return d != nil && d.Kind == resource && d.Name == name
}

// Report implements [engine.Desired].
func (d *desired) Report(ctx context.Context, of engine.ID, report *workload.TargetStatus) error {
	at := fmt.Sprintf("/clusters/%s/apis/%s/namespaces/%s/targetstatuses/%s", of.Key.Cluster, workload.GroupVersion, of.Key.Namespace,
		engine.StatusName(of.GroupResource, of.Key.Name, d.key))
	if report == nil {
		return d.server.call(ctx, "DELETE", at, nil, nil)
	}
	return d.server.call(ctx, "PUT", at, report, nil)
}
