package fleet

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/place"
)

type (
	placementClient  = client.Client[*scheduling.Placement, *scheduling.PlacementList]
	assignmentClient = client.Client[*workload.Assignment, *workload.AssignmentList]
	statusClient     = client.Client[*workload.TargetStatus, *workload.TargetStatusList]
)

// A fleet serves the consumers of one compute workspace. It reaches their objects through the
// view of the export that they bind, and no others.
type fleet struct {
	*manager
	compute kcp.ClusterName
	end     context.CancelFunc

	placementsIn  *placementClient
	assignmentsIn *assignmentClient
	reportsIn     *statusClient
	view          *rest.Config

	workloads   *kcp.Kind[*unstructured.Unstructured]
	placements  *kcp.Kind[*scheduling.Placement]
	assignments *kcp.Kind[*workload.Assignment]
	reports     *kcp.Kind[*workload.TargetStatus]

	pace pace

	mu          sync.Mutex
	ctx         context.Context        // of the fleet; ended by end
	term        *term                  // guarded by mu
	connections map[string]*connection // by SyncTarget; guarded by mu
	agents      *agents                // nil while no SyncTarget is in pull mode; set once, with mu held
	wakes       map[string]func(kcp.Key)
	world       []fact // guarded by mu
	schedule    func(kcp.Key)
}

// A fact is a target as the scheduler sees it.
type fact struct {
	place.Target
	labels    map[string]string
	locations []location // that have the target
}

type location struct {
	name   string
	labels map[string]string
}

// byTarget is the index of Assignments by the keys of their targets.
const byTarget = "target"

func newFleet(ctx context.Context, m *manager, compute kcp.ClusterName) (*fleet, error) {
	home, err := m.server.Own(string(compute))
	if err != nil {
		return nil, err
	}
	resources, err := ensureSchemas(ctx, home, string(compute), "placements.scheduling.kcp.io", "assignments.workload.kcp.io", "targetstatuses.workload.kcp.io")
	if err != nil {
		return nil, fmt.Errorf("export %s: %w", workload.KubernetesExport, err)
	}
	if err := ensureExport(ctx, home, string(compute), workload.KubernetesExport, append(resources, native(engine.Deployments()))); err != nil {
		return nil, fmt.Errorf("export %s: %w", workload.KubernetesExport, err)
	}
	f := &fleet{manager: m, compute: compute, connections: map[string]*connection{}, wakes: map[string]func(kcp.Key){}}
	if f.view, err = viewOf(m.server, compute, workload.KubernetesExport); err != nil {
		return nil, err
	}
	if f.placementsIn, err = client.New[*scheduling.Placement, *scheduling.PlacementList](f.view, "*", placements()); err != nil {
		return nil, err
	}
	if f.assignmentsIn, err = client.New[*workload.Assignment, *workload.AssignmentList](f.view, "*", assignments()); err != nil {
		return nil, err
	}
	if f.reportsIn, err = client.New[*workload.TargetStatus, *workload.TargetStatusList](f.view, "*", targetStatuses()); err != nil {
		return nil, err
	}
	all, err := dynamic.NewForConfig(client.Cluster(f.view, "*"))
	if err != nil {
		return nil, err
	}
	f.workloads, f.placements = dynamicKind(all, engine.Deployments()), kindOf("placements", f.placementsIn)
	f.assignments, f.reports = kindOf("assignments", f.assignmentsIn), kindOf("targetstatuses", f.reportsIn)
	return f, f.assignments.Index(byTarget, func(a *workload.Assignment) (keys []string) {
		for _, t := range a.Spec.Targets {
			keys = append(keys, t.Key)
		}
		return keys
	})
}

// start runs the caches and loops of the fleet until end is called or the term ends.
func (f *fleet) start(t *term) {
	ctx, end := context.WithCancel(t.ctx)
	f.ctx, f.end, f.term = ctx, end, t
	t.work.Go(func() { f.workloads.Run(ctx) })
	t.work.Go(func() { f.placements.Run(ctx) })
	t.work.Go(func() { f.assignments.Run(ctx) })
	t.work.Go(func() { f.reports.Run(ctx) })
	for _, s := range f.dispatches() {
		s.Subscribe(func(kcp.Key) {})
	}
	f.refresh()
	t.work.Go(func() { kcp.Run(ctx, f.scheduleLoop(), f.sumLoop(), f.placementLoop()) })
}

// dispatches returns the sources of changes that concern engines. They wake the engines that a change
// concerns, and no others.
func (f *fleet) dispatches() []kcp.Source {
	return []kcp.Source{
		f.workloads.Wakes(func(w *unstructured.Unstructured) []kcp.Key {
			if a := f.assignmentOf(kcp.KeyOf(w)); a != nil {
				f.wakeAll(a)
			}
			return nil
		}),
		// An Assignment that was deleted still names its targets.
		f.assignments.Wakes(func(a *workload.Assignment) []kcp.Key { f.wakeAll(a); return nil }),
		f.reports.Wakes(func(s *workload.TargetStatus) []kcp.Key {
			f.wake(s.Spec.Key, workloadOf(s, s.Spec.Workload))
			return nil
		}),
	}
}

func (f *fleet) wakeAll(a *workload.Assignment) {
	for _, t := range a.Spec.Targets {
		f.wake(t.Key, workloadOf(a, a.Spec.Workload))
	}
}

// wake wakes the engine of a target.
func (f *fleet) wake(target string, key kcp.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if wake := f.wakes[target]; wake != nil {
		wake(key)
	}
}

// workloadOf returns the key of the workload that a side object refers to.
func workloadOf(o metav1.Object, of workload.WorkloadReference) kcp.Key {
	key := kcp.KeyOf(o)
	key.Name = of.Name
	return key
}

func (f *fleet) assignmentOf(key kcp.Key) *workload.Assignment {
	key.Name = engine.AssignmentName(engine.Deployments().GroupResource(), key.Name)
	return f.assignments.Get(key)
}

func (f *fleet) reportOf(key kcp.Key, target string) *workload.TargetStatus {
	key.Name = engine.StatusName(engine.Deployments().GroupResource(), key.Name, target)
	return f.reports.Get(key)
}

// wakesOf is the source of an engine: the workloads of its target.
func (f *fleet) wakesOf(target string) kcp.Source {
	return kcp.Source{Ready: f.assignments.Ready(), Subscribe: func(wake func(kcp.Key)) func() {
		f.mu.Lock()
		f.wakes[target] = wake
		f.mu.Unlock()
		// Whatever comes into the cache from here on wakes the engine.
		for _, key := range f.assignments.By(byTarget, target) {
			if a := f.assignments.Get(key); a != nil {
				wake(workloadOf(a, a.Spec.Workload))
			}
		}
		return func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			delete(f.wakes, target)
		}
	}}
}

// uses reports whether a workload still has a part at a target. A part that an unreachable target
// shall remove does not count.
func (f *fleet) uses(target string, unreachable bool) bool {
	select {
	case <-f.assignments.Ready():
	default:
		return true
	}
	for _, key := range f.assignments.By(byTarget, target) {
		a := f.assignments.Get(key)
		if a == nil {
			continue
		}
		for _, t := range a.Spec.Targets {
			if t.Key == target && !(unreachable && t.Phase == workload.Removing) {
				return true
			}
		}
	}
	return false
}

// refresh makes the scheduler decide anew if the targets have changed for it.
func (f *fleet) refresh() {
	var world []fact
	offered := f.manager.locations.List(f.compute)
	slices.SortFunc(offered, func(a, b *scheduling.Location) int { return compareNames(a.Name, b.Name) })
	for _, t := range f.targets.List(f.compute) {
		w := fact{Target: place.Target{
			Key: engine.TargetKey(string(f.compute), t.Name, string(t.UID)), Unschedulable: t.Spec.Unschedulable, Taints: t.Spec.Taints,
			Ready: t.Status.LastSyncerHeartbeatTime != nil,
		}, labels: t.Labels}
		if t.Status.UnreachableSince != nil {
			w.Unreachable = t.Status.UnreachableSince.Time
		}
		if t.Spec.EvictAfter != nil {
			w.EvictAfter = t.Spec.EvictAfter.Time
		}
		if t.DeletionTimestamp != nil {
			w.EvictAfter = t.DeletionTimestamp.Time
		}
		for _, l := range offered {
			if offers(l, t) {
				w.locations = append(w.locations, location{l.Name, l.Labels})
			}
		}
		world = append(world, w)
	}
	slices.SortFunc(world, func(a, b fact) int { return compareNames(a.Key, b.Key) })
	f.mu.Lock()
	same, wake := reflect.DeepEqual(f.world, world), f.schedule
	f.world = world
	f.mu.Unlock()
	if same || wake == nil {
		return
	}
	for _, w := range f.workloads.List("*") {
		wake(kcp.KeyOf(w))
	}
}

func compareNames(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// targetsFor returns the targets as a Placement sees them.
func (f *fleet) targetsFor(p *scheduling.Placement) (all []place.Target, hold bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	lost := 0
	for _, w := range f.world {
		t := w.Target
		for _, l := range w.locations {
			if len(p.Spec.LocationSelectors) == 0 || slices.ContainsFunc(p.Spec.LocationSelectors, func(s metav1.LabelSelector) bool { return selects(&s, l.labels) }) {
				t.Location = l.name
				break
			}
		}
		if !t.Unreachable.IsZero() {
			lost++
		}
		all = append(all, t)
	}
	return all, place.Hold(len(all), lost)
}

// desired is what the engine of a target works from.
func (f *fleet) desired(target string) engine.Desired {
	return engine.Desired{Workloads: f.workloads, Assignments: f.assignments, Reports: f.reports, Wakes: f.wakesOf(target), Read: f.read, Report: f.report}
}

// read reads a workload and its Assignment from the server.
func (f *fleet) read(ctx context.Context, key kcp.Key) (*unstructured.Unstructured, *workload.Assignment, error) {
	in, err := dynamic.NewForConfig(client.Cluster(f.view, string(key.Cluster)))
	if err != nil {
		return nil, nil, err
	}
	w, err := in.Resource(engine.Deployments()).Namespace(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if missing(err, engine.Deployments().Resource) {
		return nil, nil, nil
	}
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		// The workspace may be gone, or may not bind the export any more.
		gone, unsure := f.absent(ctx, key)
		if gone {
			return nil, nil, nil
		}
		err = errors.Join(err, unsure)
	}
	if err != nil {
		return nil, nil, err
	}
	side, err := f.assignmentsIn.In(string(key.Cluster))
	if err != nil {
		return nil, nil, err
	}
	a, err := side.Namespace(key.Namespace).Get(ctx, engine.AssignmentName(engine.Deployments().GroupResource(), key.Name), metav1.GetOptions{})
	if missing(err, assignments().Resource) {
		return w, nil, nil
	}
	return w, a, err
}

// absent reports whether a consistent list of the workloads of all consumers lacks the one at key.
func (f *fleet) absent(ctx context.Context, key kcp.Key) (bool, error) {
	all, err := dynamic.NewForConfig(client.Cluster(f.view, "*"))
	if err != nil {
		return false, err
	}
	list, err := all.Resource(engine.Deployments()).List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"metadata.name": key.Name, "metadata.namespace": key.Namespace}.String()})
	if err != nil || list.GetContinue() != "" {
		return false, err
	}
	for i := range list.Items {
		if kcp.KeyOf(&list.Items[i]) == key {
			return false, nil
		}
	}
	return true, nil
}

// missing reports whether the server says that the object does not exist. A view that is gone, or
// a resource that it does not serve, says nothing about objects.
func missing(err error, resource string) bool {
	if !apierrors.IsNotFound(err) {
		return false
	}
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == resource && status.Status().Details.Name != ""
}

// report writes or deletes a TargetStatus.
func (f *fleet) report(ctx context.Context, of kcp.Key, name string, report *workload.TargetStatus) error {
	in, err := f.reportsIn.In(string(of.Cluster))
	if err != nil {
		return err
	}
	all := in.Namespace(of.Namespace)
	if report == nil {
		return ignoreGone(all.Delete(ctx, name, metav1.DeleteOptions{}))
	}
	have, err := all.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = all.Create(ctx, report, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	next := have.DeepCopy()
	next.Spec, next.OwnerReferences = report.Spec, report.OwnerReferences
	_, err = all.Update(ctx, next, metav1.UpdateOptions{})
	return err
}

// soon is the time after which a loop looks again at something that no source announces.
const soon = time.Second
