package fleet

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/unforked/kcp"
	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/answers"
	"github.com/unforked/kcp/internal/workload/export"
	"github.com/unforked/kcp/internal/workload/inventory"
	"github.com/unforked/kcp/internal/workload/objects"
	"github.com/unforked/kcp/internal/workload/physical"
	"github.com/unforked/kcp/internal/workload/push"
)

type (
	targetClient   = client.Client[*workload.SyncTarget, *workload.SyncTargetList]
	locationClient = client.Client[*scheduling.Location, *scheduling.LocationList]
)

// A manager runs the fleets while this server leads.
type manager struct {
	server  *kcp.Server
	options Options
	exports *export.Exports // never filled: it asks the server
	// writeTargets and writeLocations read and write in all compute workspaces.
	writeTargets   *targetClient
	writeLocations *locationClient
	tenants        uses
	weights        *answers.Weights // of what engines read

	mu     sync.Mutex
	term   *term                      // nil while another server leads, and without SyncTargets; guarded by mu
	fleets map[kcp.ClusterName]*fleet // by compute workspace; guarded by mu
	// followed has what agents use that are connected to this server while another one leads; guarded by mu.
	followed map[kcp.ClusterName][]*term
}

func newManager(s *kcp.Server, o Options) (*manager, error) {
	cfg, err := objects.View(s, export.Root, workload.Export)
	if err != nil {
		return nil, err
	}
	m := &manager{server: s, options: o, fleets: map[kcp.ClusterName]*fleet{}, followed: map[kcp.ClusterName][]*term{}, tenants: uses{of: map[kcp.ClusterName]*use{}}, weights: push.Weights()}
	if m.writeTargets, err = client.New[*workload.SyncTarget, *workload.SyncTargetList](cfg, "*", syncTargets()); err != nil {
		return nil, err
	}
	if m.writeLocations, err = client.New[*scheduling.Location, *scheduling.LocationList](cfg, "*", locations()); err != nil {
		return nil, err
	}
	m.exports, err = export.New(s)
	return m, err
}

// exportChanged wakes the loop of SyncTargets when the export of a compute workspace changes.
func (m *manager) exportChanged(t *term) kcp.Source {
	return t.exports.Wakes(func(e *apis.APIExport) (keys []kcp.Key) {
		if now := t.exports.Get(kcp.KeyOf(e)); !export.Serves(now) {
			t.lead.free(kcp.KeyOf(e).Cluster)
		}
		for _, of := range t.targets.List(kcp.KeyOf(e).Cluster) {
			keys = append(keys, kcp.KeyOf(of))
		}
		return keys
	})
}

// targetsLoop connects to the physical clusters.
func (m *manager) targetsLoop(t *term) kcp.Loop {
	return kcp.Loop{Name: "workload-targets", Workers: 16, On: []kcp.Source{t.targets.Changed(), m.exportChanged(t), t.locations.Read(), m.waking(&t.wake)},
		Do: func(ctx context.Context, key kcp.Key) error { return m.target(ctx, t, key) }}
}

// waking is a source that lets others wake a loop while it runs.
func (m *manager) waking(wakes *func(kcp.Key)) kcp.Source {
	return kcp.Source{Subscribe: func(wake func(kcp.Key)) func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		*wakes = wake
		return nil
	}}
}

func (m *manager) target(ctx context.Context, in *term, key kcp.Key) error {
	t := in.targets.Get(key)
	e, err := in.exports.Find(ctx, key.Cluster)
	if err != nil {
		return err
	}
	exported := export.Serves(e)
	ends := t != nil && t.DeletionTimestamp != nil && !exported // nothing of it is left to wait for
	f, err := m.fleet(ctx, in, key.Cluster, t != nil && !ends)
	if f == nil && ends && err == nil {
		return m.leave(ctx, t)
	}
	if f == nil || err != nil {
		return err
	}
	if !exported {
		f.lose()
	} else if err := f.retire(ctx, t, e); err != nil {
		return err
	}
	f.inventory.LearnTarget(key.Name)
	if t == nil {
		f.disconnect(key.Name)
		return m.dropEmpty(ctx, f)
	}
	if t.DeletionTimestamp == nil && exported && !export.Ending(e) {
		if err := f.resume(ctx, t, e); err != nil {
			return err
		}
	}
	switch {
	case t.DeletionTimestamp != nil && !slices.Contains(t.Finalizers, workload.DisconnectFinalizer):
		return nil
	case ends, t.DeletionTimestamp != nil && (!f.uses(t) || f.overdue()):
		return m.drop(ctx, f, t, ends || f.overdue())
	case t.DeletionTimestamp == nil && !slices.Contains(t.Finalizers, workload.DisconnectFinalizer):
		if err := m.finalize(ctx, t, append(slices.Clone(t.Finalizers), workload.DisconnectFinalizer)); err != nil {
			return err
		}
	}
	attended := f.attend(ctx, t)
	if t.DeletionTimestamp != nil || !export.Ending(e) {
		return attended
	}
	return cmp.Or(f.endExport(ctx, t, e), attended) // also for one that cannot be attended: the time for it ends
}

// attend connects to a target, and writes what the seat belt and the state of the target demand.
func (f *fleet) attend(ctx context.Context, t *workload.SyncTarget) error {
	id := f.keyOf(t)
	if err := f.connect(t, id); err != nil {
		refused := &connection{fleet: f, name: t.Name, id: id, seen: time.Now(), alive: time.Now()}
		refused.observe(ctx, nil, physical.Because(workload.TooMany, err))
		return kcp.After(time.Minute)
	}
	cleans, err := f.setBelt(ctx, t, id)
	if err != nil {
		return err
	}
	if t.DeletionTimestamp != nil || cleans {
		return kcp.After(time.Second) // until its workloads are elsewhere, or it has removed what began elsewhere
	}
	return nil
}

// drop ends the work on a SyncTarget that no workload uses. The last one waits until nothing is left of the fleet in its
// consumers, unless hurried is set.
func (m *manager) drop(ctx context.Context, f *fleet, t *workload.SyncTarget, hurried bool) error {
	last := m.last(f, t)
	if last && !hurried {
		if done, err := f.dissolved(ctx); err != nil || !done {
			return cmp.Or(err, kcp.After(soon))
		}
	}
	f.disconnect(t.Name)
	if last {
		return m.leave(ctx, t)
	}
	return m.finalize(ctx, t, withoutDisconnect(t))
}

// last reports whether a SyncTarget that no workload uses goes as the last one of its workspace. Of several that go
// at once, that is the first by name.
func (m *manager) last(f *fleet, t *workload.SyncTarget) bool {
	return !slices.ContainsFunc(f.term.targets.List(f.compute), func(of *workload.SyncTarget) bool {
		switch {
		case of.Name == t.Name:
			return false
		case of.DeletionTimestamp == nil:
			return true
		case !slices.Contains(of.Finalizers, workload.DisconnectFinalizer):
			return false // it is gone
		}
		return of.Name < t.Name || f.uses(of)
	})
}

// wakeTargets makes the loop look at the SyncTargets of a compute workspace.
func (m *manager) wakeTargets(compute kcp.ClusterName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.term == nil || m.term.wake == nil {
		return
	}
	for _, t := range m.term.targets.List(compute) {
		m.term.wake(kcp.KeyOf(t))
	}
}

// leave removes the finalizer of a SyncTarget, and those of the export and of ResourceProfiles that no fleet would
// remove after it.
func (m *manager) leave(ctx context.Context, t *workload.SyncTarget) error {
	if err := m.freeCompute(ctx, kcp.KeyOf(t).Cluster); err != nil {
		return err
	}
	return m.finalize(ctx, t, withoutDisconnect(t))
}

// freeCompute removes the finalizers of the ResourceProfiles and of the export of a compute workspace that places nothing
// any more.
func (m *manager) freeCompute(ctx context.Context, compute kcp.ClusterName) error {
	if err := m.freeProfiles(ctx, compute); err != nil {
		return err
	}
	return m.exports.Release(ctx, compute)
}

func withoutDisconnect(t *workload.SyncTarget) []string {
	return slices.DeleteFunc(slices.Clone(t.Finalizers), func(of string) bool { return of == workload.DisconnectFinalizer })
}

// finalize sets the finalizers of a SyncTarget.
func (m *manager) finalize(ctx context.Context, t *workload.SyncTarget, finalizers []string) error {
	patch, err := objects.FinalizersPatch(t, finalizers)
	if err != nil {
		return err
	}
	in, err := m.writeTargets.In(string(kcp.KeyOf(t).Cluster))
	if err != nil {
		return err
	}
	_, err = in.Patch(ctx, t.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return objects.IgnoreGone(err)
}

// fleet returns the fleet of a compute workspace. If there is none, it starts one or returns nil.
func (m *manager) fleet(ctx context.Context, t *term, compute kcp.ClusterName, start bool) (*fleet, error) {
	f := m.leading(compute)
	if f == nil && !start {
		t.lead.review() // a SyncTarget that had no fleet may be the last one
	}
	if f != nil || !start {
		return f, nil
	}
	f, err := newFleet(ctx, m, t, compute)
	if err != nil {
		return nil, err
	}
	if have, published := m.publish(f); !published {
		return have, nil
	}
	f.inventory.CountAll()
	return f, nil
}

// publish starts a fleet, unless there is another one, or this server does not lead any more.
func (m *manager) publish(f *fleet) (have *fleet, published bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if have := m.fleets[f.compute]; have != nil || m.term != f.term {
		return have, false
	}
	m.fleets[f.compute] = f
	f.start()
	for _, own := range m.followed[f.compute] { // its agents connect again, and use this one
		own.end()
	}
	return f, true
}

// dropEmpty ends a fleet without targets, once nothing is left of it in its consumers.
func (m *manager) dropEmpty(ctx context.Context, f *fleet) error {
	if len(f.term.targets.List(f.compute)) > 0 {
		return nil
	}
	if !f.overdue() { // as in the deletion of an export
		if done, err := f.dissolved(ctx); err != nil || !done {
			return cmp.Or(err, kcp.After(soon))
		}
	}
	if err := m.freeCompute(ctx, f.compute); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fleets[f.compute] == f {
		delete(m.fleets, f.compute)
		f.end()
	}
	f.term.lead.free(f.compute) // the export may be gone, and its cache may not know that yet
	f.term.lead.review()
	return nil
}

// locationsLoop counts the targets of Locations, and makes the schedulers notice changes.
func (m *manager) locationsLoop(t *term) kcp.Loop {
	return kcp.Loop{Name: "workload-locations", On: []kcp.Source{t.locations.Changed(), t.targets.Read(), m.waking(&t.count)},
		Do: func(ctx context.Context, key kcp.Key) error { return m.location(ctx, t, key) }}
}

func (m *manager) location(ctx context.Context, of *term, key kcp.Key) error {
	if f := m.leading(key.Cluster); f != nil {
		f.inventory.LearnLocation(key.Name)
	}
	l := of.locations.Get(key)
	if l == nil || l.DeletionTimestamp != nil {
		return nil
	}
	var next scheduling.LocationStatus
	all, available := int32(0), int32(0)
	for _, t := range of.targets.List(key.Cluster) {
		if !inventory.Has(l, t) {
			continue
		}
		all++
		if inventory.Available(t) {
			available++
		}
	}
	next.Instances, next.AvailableInstances = &all, &available
	if l.Status.Instances != nil && l.Status.AvailableInstances != nil && *l.Status.Instances == all && *l.Status.AvailableInstances == available {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"status": next})
	if err != nil {
		return err
	}
	in, err := m.writeLocations.In(string(key.Cluster))
	if err != nil {
		return err
	}
	_, err = in.Patch(ctx, key.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return objects.IgnoreGone(err)
}
