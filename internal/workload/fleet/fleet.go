package fleet

import (
	"context"
	"sync"
	"time"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/autoscale"
	"github.com/unforked/kcp/internal/workload/consumers"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/export"
	"github.com/unforked/kcp/internal/workload/history"
	"github.com/unforked/kcp/internal/workload/inventory"
	"github.com/unforked/kcp/internal/workload/objects"
	"github.com/unforked/kcp/internal/workload/schedule"
)

// A fleet serves the consumers of one compute workspace.
type fleet struct {
	*manager
	compute kcp.ClusterName
	end     context.CancelFunc
	leads   bool // this server decides; set before the loops start

	consumers  *consumers.Cache
	inventory  *inventory.Inventory // of its targets
	scheduler  *schedule.Scheduler
	profilesIn *profileClient
	pace       objects.Pace // of statuses
	scans      objects.Pace // of the Assignments of a workspace, for its Placements
	history    kcp.Loop

	term *term

	mu          sync.Mutex
	ctx         context.Context        // of the fleet; ended by end
	connections map[string]*connection // by SyncTarget; guarded by mu
	probes      func(kcp.Key)          // wakes the loop of probes; guarded by mu
	agents      *agents                // nil while no SyncTarget is in pull mode; set once, with mu held
	profiles    func(kcp.Key)          // wakes the loop of ResourceProfiles; guarded by mu
	placements  func(kcp.Key)          // wakes the loop of Placements; guarded by mu
	retirement  retirement             // guarded by mu
}

func newFleet(ctx context.Context, m *manager, t *term, compute kcp.ClusterName) (*fleet, error) {
	e, err := m.exports.Find(ctx, compute)
	if err != nil {
		return nil, err
	}
	ends, err := m.ends(ctx, compute)
	if err == nil && !ends && !export.Ending(e) { // nothing can be created in one that ends
		err = export.EnsureKubernetes(ctx, m.server, compute)
	}
	if err != nil {
		return nil, err
	}
	f := &fleet{manager: m, term: t, compute: compute, connections: map[string]*connection{}}
	if f.consumers, err = consumers.Open(m.server, compute, "*"); err != nil {
		return nil, err
	}
	if f.history, err = history.Loop(f.consumers, f.warn); err != nil {
		return nil, err
	}
	if f.profilesIn, err = m.profilesOf(compute); err != nil {
		return nil, err
	}
	f.inventory = inventory.New(inventory.Options{Compute: compute, Targets: t.targets, Locations: t.locations, Health: m.options.health, Abandoned: f.abandoned, Count: f.countTargets, Turn: f.turn})
	f.scheduler = schedule.New(schedule.Options{
		Consumers: f.consumers, Inventory: f.inventory, Inputs: []kcp.Source{t.targets.Read(), t.locations.Read()},
		Evictions: m.options.Evictions, Stop: m.options.Stop, Lapsed: f.lapsed, Say: f.sum,
	})
	if ends || export.Ending(e) { // before the first decision
		f.beginRetirement(e, ends)
	}
	return f, nil
}

// warn says something to the users of a logical cluster.
func (m *manager) warn(ctx context.Context, at kcp.ClusterName, w objects.Warning) error {
	return objects.Warn(ctx, m.server, at, w)
}

// start runs the caches and loops of the fleet until end is called or the term ends.
func (f *fleet) start() {
	f.leads = true
	f.follow()
	f.inventory.KnowFrom(time.Now())
	f.inventory.Learn()
	autoscaling := autoscale.Loop(f.ctx, autoscale.Options{
		Server: f.server, Compute: f.compute, Consumers: f.consumers, Targets: f.term.targets, Pods: f.options.pods, Period: f.options.Autoscale,
	})
	f.term.run(f.ctx, append(f.scheduler.Loops(), f.sumLoop(), f.placementLoop(), f.probeLoop(), f.history, autoscaling)...)
}

// follow runs what a server needs for the engines of the fleet, in this program or in agents: the
// caches and the profiles. It decides nothing.
func (f *fleet) follow() {
	ctx, end := context.WithCancel(f.term.ctx)
	f.ctx, f.end = ctx, end
	f.consumers.Start(ctx, &f.term.work, f.probeAll) // engines that waited for the caches start
	f.term.run(ctx, f.profileLoop())
}

// countTargets makes the targets of a Location be counted.
func (f *fleet) countTargets(location string) {
	f.manager.mu.Lock()
	wake := f.term.count
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
	f.scheduler.Turn()
}

// uses reports whether a target still has a part of a workload, or a copy of one that does not exist any more. What a
// target shall remove does not count if the server does not wait for it.
func (f *fleet) uses(t *workload.SyncTarget) bool {
	awaited := !unanswered(t)
	if f.scheduler.Retiring() {
		awaited = !f.abandoned(t)
	}
	return f.holds(t, awaited)
}

// holds reports whether a target has a part of a workload. Parts in phase Removing count if removing is true.
func (f *fleet) holds(t *workload.SyncTarget, removing bool) bool {
	target := f.keyOf(t)
	return f.consumers.AnyPart(target, func(p *workload.AssignedTarget) bool { return removing || p.Phase != workload.Removing }) ||
		removing && f.consumers.Reported(target)
}

// keyOf returns the key of a target.
func (f *fleet) keyOf(t *workload.SyncTarget) string {
	return engine.TargetKey(string(f.compute), t.Name, string(t.UID))
}

// dissolved reports whether nothing of the fleet is left in its consumers, and makes the scheduler remove what is.
func (f *fleet) dissolved(ctx context.Context) (bool, error) {
	if f.scheduler.Dissolve() && (!f.scheduler.Retiring() || f.placementsSayDeleted()) {
		return true, nil
	}
	// Without the export, the server reaches no consumer through the view. See [export.Exports.Free].
	exported, err := f.term.exports.Exists(ctx, f.compute)
	return !exported && err == nil, err
}

// lose makes a fleet without its export decide nothing. It reaches no consumer.
func (f *fleet) lose() {
	if f.scheduler.Lose() {
		f.reviewProfiles()
	}
}

// soon is the time after which a loop looks again at something that no source announces.
const soon = time.Second
