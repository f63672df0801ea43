package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/inventory"
	"github.com/unforked/kcp/internal/workload/pods"
	"github.com/unforked/kcp/internal/workload/profile"
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
	leads   bool // this server decides; set before the loops start

	placementsIn  *placementClient
	assignmentsIn *assignmentClient
	reportsIn     *statusClient
	view          *rest.Config

	kinds       kindTable // of objects that have Assignments, and of dependencies
	placements  *kcp.Kind[*scheduling.Placement]
	assignments *kcp.Kind[*workload.Assignment]
	reports     *kcp.Kind[*workload.TargetStatus]

	pace pace
	belt belt

	inventory *inventory.Inventory // of its targets

	mu          sync.Mutex
	ctx         context.Context        // of the fleet; ended by end
	term        *term                  // guarded by mu
	connections map[string]*connection // by SyncTarget; guarded by mu
	probes      func(kcp.Key)          // wakes the loop of probes; guarded by mu
	agents      *agents                // nil while no SyncTarget is in pull mode; set once, with mu held
	wakes       map[string]func(kcp.Key)
	ears        []*ear // replaced, not changed; guarded by mu
	ending      bool   // the last SyncTarget or the export goes; guarded by mu
	lost        bool   // the export goes; guarded by mu
	schedule    func(kcp.Key)
	profiles    func(kcp.Key) // wakes the loop of ResourceProfiles; guarded by mu
	summing     func(kcp.Key)
	spans       map[string][]span        // by namespace; guarded by mu
	expected    map[string][]expectation // by namespace; guarded by mu
}

// Indexes of Assignments.
const (
	byTarget    = "target"    // by the keys of their targets
	byHolding   = "holding"   // by the key of a target and the resource
	byNamespace = "namespace" // by their namespace
)

// byTask is an index of TargetStatuses, by the task of their workload.
const byTask = "task"

func newFleet(ctx context.Context, m *manager, compute kcp.ClusterName) (*fleet, error) {
	home, err := m.server.Own(string(compute))
	if err != nil {
		return nil, err
	}
	resources, err := ensureSchemas(ctx, home, string(compute), "placements.scheduling.kcp.io", "placementreviews.scheduling.kcp.io", "assignments.workload.kcp.io", "targetstatuses.workload.kcp.io")
	if err != nil {
		return nil, fmt.Errorf("export %s: %w", workload.KubernetesExport, err)
	}
	for _, p := range profile.Shipped() {
		resources = append(resources, native(p.GroupVersionResource))
	}
	resources = append(resources, native(pods.Resource()), native(podMetrics()))
	if err := ensureExport(ctx, home, string(compute), workload.KubernetesExport, offer{resources, claims()}); err != nil {
		return nil, fmt.Errorf("export %s: %w", workload.KubernetesExport, err)
	}
	return openFleet(m, compute, "*")
}

// openFleet returns a fleet with the objects of one consumer, or of all ("*").
func openFleet(m *manager, compute kcp.ClusterName, consumers string) (*fleet, error) {
	var err error
	f := &fleet{manager: m, compute: compute, connections: map[string]*connection{}, wakes: map[string]func(kcp.Key){}, spans: map[string][]span{}, expected: map[string][]expectation{}}
	f.inventory = inventory.New(inventory.Options{Compute: compute, Targets: m.targets, Locations: m.locations, Health: m.options.health, Count: f.countTargets, Turn: f.turn})
	if f.view, err = viewOf(m.server, compute, workload.KubernetesExport); err != nil {
		return nil, err
	}
	if f.placementsIn, err = client.New[*scheduling.Placement, *scheduling.PlacementList](f.view, consumers, placements()); err != nil {
		return nil, err
	}
	if f.assignmentsIn, err = client.New[*workload.Assignment, *workload.AssignmentList](f.view, consumers, assignments()); err != nil {
		return nil, err
	}
	if f.reportsIn, err = client.New[*workload.TargetStatus, *workload.TargetStatusList](f.view, consumers, targetStatuses()); err != nil {
		return nil, err
	}
	f.placements = kindOf("placements", f.placementsIn)
	f.assignments, f.reports = kindOf("assignments", f.assignmentsIn), kindOf("targetstatuses", f.reportsIn)
	if err := f.kinds.init(f, consumers); err != nil {
		return nil, err
	}
	return f, f.index()
}

// index adds the indexes of Assignments and TargetStatuses.
func (f *fleet) index() error {
	err := f.assignments.Index(byTarget, func(a *workload.Assignment) (keys []string) {
		for _, t := range a.Spec.Targets {
			keys = append(keys, t.Key)
		}
		return keys
	})
	if err != nil {
		return err
	}
	err = f.assignments.Index(byHolding, func(a *workload.Assignment) (keys []string) {
		for _, t := range a.Spec.Targets {
			keys = append(keys, holdingKey(t.Key, engine.IDFor(a, a.Spec.Workload).GroupResource))
		}
		return keys
	})
	if err != nil {
		return err
	}
	if err := f.reports.Index(byTask, func(s *workload.TargetStatus) []string {
		return []string{engine.IDFor(s, s.Spec.Workload).Task().String()}
	}); err != nil {
		return err
	}
	return f.assignments.Index(byNamespace, func(a *workload.Assignment) []string { return []string{namespaceKey(kcp.KeyOf(a))} })
}

func holdingKey(target string, of schema.GroupResource) string { return target + "/" + of.String() }

func namespaceKey(of kcp.Key) string { return string(of.Cluster) + "/" + of.Namespace }

// start runs the caches and loops of the fleet until end is called or the term ends.
func (f *fleet) start(t *term) {
	f.leads = true
	f.follow(t)
	f.inventory.Learn()
	t.run(f.ctx, f.scheduleLoop(), f.sumLoop(), f.placementLoop(), f.spanLoop(), f.autoscaleLoop(), f.probeLoop())
}

// follow runs what a server needs for the engines of the fleet, in this program or in agents: the
// caches and the profiles. It decides nothing.
func (f *fleet) follow(t *term) {
	ctx, end := context.WithCancel(t.ctx)
	f.ctx, f.end, f.term = ctx, end, t
	t.work.Go(func() { f.placements.Run(ctx) })
	t.work.Go(func() { f.assignments.Run(ctx) })
	t.work.Go(func() { f.reports.Run(ctx) })
	f.kinds.start()
	for _, s := range f.dispatches() {
		s.Subscribe(func(kcp.Key) {})
	}
	t.run(ctx, f.profileLoop())
}

// dispatches returns the sources of changes that concern engines. They wake the engines that a change
// concerns, and no others.
func (f *fleet) dispatches() []kcp.Source {
	return []kcp.Source{
		// An Assignment that was deleted still names its targets.
		f.assignments.Wakes(func(a *workload.Assignment) []kcp.Key {
			id := engine.IDFor(a, a.Spec.Workload)
			f.wakeAll(a, id)
			for _, of := range f.needs(id) {
				f.wakeAll(a, of)
			}
			return nil
		}),
		f.reports.Wakes(func(s *workload.TargetStatus) []kcp.Key {
			f.wake(s.Spec.Key, engine.IDFor(s, s.Spec.Workload).Task())
			return nil
		}),
	}
}

// wakeAll wakes the engines of an Assignment to work on an object.
func (f *fleet) wakeAll(a *workload.Assignment, id engine.ID) {
	for _, t := range a.Spec.Targets {
		f.wake(t.Key, id.Task())
	}
}

// wake wakes the engine of a target, and those who listen for agents.
func (f *fleet) wake(target string, key kcp.Key) {
	f.mu.Lock()
	if wake := f.wakes[target]; wake != nil {
		wake(key)
	}
	f.mu.Unlock()
	f.tell(target, engine.IDOf(key))
}

// countTargets makes the targets of a Location be counted.
func (f *fleet) countTargets(location string) {
	f.manager.mu.Lock()
	wake := f.manager.count
	f.manager.mu.Unlock()
	if wake != nil {
		wake(kcp.Key{Cluster: f.compute, Name: location})
	}
}

// turn makes the scheduler decide anew, because the targets have changed for it. held tells that
// targets that do not answer began or ceased to be held.
func (f *fleet) turn(held bool) {
	if held {
		f.wakeTargets(f.compute)
	}
	f.mu.Lock()
	wake := f.schedule
	f.mu.Unlock()
	if wake == nil {
		return
	}
	f.kinds.each("*", wake)
	targets := f.orphaning()
	for _, r := range f.reports.List("*") { // workloads that do not exist any more have no key of a kind
		if _, exists := targets[r.Spec.Key]; !exists {
			wake(engine.IDFor(r, r.Spec.Workload).Task())
		}
	}
}

// An ear hears what concerns the engines.
type ear struct {
	hear func(target string, of engine.ID)
}

// tell tells all who listen.
func (f *fleet) tell(target string, of engine.ID) {
	f.mu.Lock()
	ears := f.ears
	f.mu.Unlock()
	for _, e := range ears {
		e.hear(target, of)
	}
}

// listen calls hear for what concerns the engines until leave is called.
func (f *fleet) listen(hear func(target string, of engine.ID)) (leave func()) {
	e := &ear{hear}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ears = append(slices.Clone(f.ears), e)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.ears = slices.DeleteFunc(slices.Clone(f.ears), func(of *ear) bool { return of == e })
	}
}

func (f *fleet) assignmentOf(id engine.ID) *workload.Assignment {
	key := id.Key
	key.Name = engine.AssignmentName(id.GroupResource, key.Name)
	return f.assignments.Get(key)
}

func (f *fleet) reportOf(id engine.ID, target string) *workload.TargetStatus {
	key := id.Key
	key.Name = engine.StatusName(id.GroupResource, key.Name, target)
	return f.reports.Get(key)
}

// assignedIn returns the Assignments of a namespace.
func (f *fleet) assignedIn(of kcp.Key) (all []*workload.Assignment) {
	for _, key := range f.assignments.By(byNamespace, namespaceKey(of)) {
		if a := f.assignments.Get(key); a != nil {
			all = append(all, a)
		}
	}
	return all
}

// uses reports whether a workload still has a part at a target. A part that an unreachable target
// shall remove does not count.
func (f *fleet) uses(target string, unreachable bool) bool {
	return f.anyPart(target, func(p *workload.AssignedTarget) bool { return !unreachable || p.Phase != workload.Removing })
}

// anyPart reports whether a workload has such a part at a target. Until the Assignments are known, it
// may have.
func (f *fleet) anyPart(target string, is func(*workload.AssignedTarget) bool) bool {
	select {
	case <-f.assignments.Ready():
	default:
		return true
	}
	for _, key := range f.assignments.By(byTarget, target) {
		if a := f.assignments.Get(key); a != nil {
			if p := partAt(a, target); p != nil && is(p) {
				return true
			}
		}
	}
	return false
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

// soon is the time after which a loop looks again at something that no source announces.
const soon = time.Second
