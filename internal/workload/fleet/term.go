package fleet

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/unforked/kcp"
	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/consumers"
	"github.com/unforked/kcp/internal/workload/export"
	"github.com/unforked/kcp/internal/workload/objects"
)

// A lead is the time in which this server leads.
type lead struct {
	*manager
	ctx  context.Context
	wake func(kcp.Key) // wakes the loop that leads

	registered atomic.Bool // a SyncTarget exists, as far as the server waited for one
	forget     func()      // ends the wait for a SyncTarget; only the loop that leads uses it
}

// A term is the part of a lead in which there are SyncTargets. It has caches of its own, as those of the term before
// are outdated.
type term struct {
	lead      *lead // nil for agents of another server
	ctx       context.Context
	end       context.CancelFunc
	work      sync.WaitGroup
	targets   *kcp.Kind[*workload.SyncTarget]
	locations *kcp.Kind[*scheduling.Location]
	exports   *export.Exports // of the compute workspaces

	wake  func(kcp.Key) // wakes the loop of SyncTargets, or nil; guarded by manager.mu
	count func(kcp.Key) // wakes the loop of Locations, or nil; guarded by manager.mu
}

// newTerm returns a term with empty caches, which ends with ctx.
func (m *manager) newTerm(ctx context.Context) (*term, error) {
	exports, err := export.New(m.server)
	if err != nil {
		return nil, err
	}
	t := &term{targets: objects.KindOf("synctargets", m.writeTargets), locations: objects.KindOf("locations", m.writeLocations), exports: exports}
	t.ctx, t.end = context.WithCancel(ctx)
	return t, nil
}

// run runs loops until ctx ends, which ends with the term.
func (t *term) run(ctx context.Context, loops ...kcp.Loop) {
	t.work.Add(1)
	wait := kcp.Start(ctx, loops...)
	context.AfterFunc(ctx, func() {
		defer t.work.Done()
		wait()
	})
}

// leadLoop runs while this server leads. While there is no SyncTarget and no Assignment, it waits for them, and
// has no goroutine.
func (m *manager) leadLoop() kcp.Loop {
	var l *lead
	do := func(ctx context.Context, key kcp.Key) error { return l.do(ctx, key) }
	return kcp.Loop{Name: "workload", Workers: 4, Do: do, On: []kcp.Source{{Subscribe: func(wake func(kcp.Key)) func() {
		ctx, end := context.WithCancel(context.Background())
		l = &lead{manager: m, ctx: ctx, wake: wake}
		l.await()
		wake(unusedKey)
		forget := m.server.Await(consumers.Assignments().GroupResource(), func() { wake(sweepKey) })
		return func() {
			forget()
			l.forget()
			end()
			l.stop()
		}
	}}}}
}

// followKey is the key of the work that begins with the first SyncTarget and ends with the last one.
var followKey = kcp.Key{Cluster: export.Root, Name: "follow"}

// sweepKey is the key of the work that looks for consumers whose export was deleted while no server led.
var sweepKey = kcp.Key{Cluster: export.Root, Name: "sweep"}

// unusedKey is the key of the work that looks for exports whose SyncTargets are gone, once per lead.
var unusedKey = kcp.Key{Cluster: export.Root, Name: "unused"}

// do does what a key of the loop stands for.
func (l *lead) do(ctx context.Context, key kcp.Key) error {
	switch key {
	case followKey:
		return l.follow()
	case unusedKey:
		return l.exports.ReleaseUnused(ctx, l.used)
	case sweepKey:
		return l.exports.Sweep(ctx)
	}
	return l.exports.Free(ctx, key.Cluster)
}

// review makes the loop look whether there is a SyncTarget.
func (l *lead) review() { l.wake(followKey) }

// free makes the loop free the consumers of a compute workspace whose export is gone.
func (l *lead) free(compute kcp.ClusterName) { l.wake(kcp.Key{Cluster: compute}) }

// await waits for a SyncTarget. That there is one already counts, too.
func (l *lead) await() {
	l.forget = l.server.Await(syncTargets().GroupResource(), func() {
		l.registered.Store(true)
		l.review()
	})
}

// follow begins a term when there is a SyncTarget, and ends it when there is none. The loop calls it one at a time.
func (l *lead) follow() error {
	l.mu.Lock()
	t := l.term
	l.mu.Unlock()
	if t == nil {
		if !l.registered.Load() {
			return nil
		}
		return l.begin()
	}
	select {
	case <-t.targets.Ready():
	default:
		return nil // it looks again then
	}
	l.mu.Lock()
	used := len(l.fleets) > 0 || len(t.targets.List("*")) > 0
	if !used {
		l.term = nil // no fleet begins any more
	}
	l.mu.Unlock()
	if used {
		return nil
	}
	l.finish(t)
	// A SyncTarget that this term missed is a first one for the next wait.
	l.registered.Store(false)
	l.await()
	return nil
}

// begin begins to follow SyncTargets, Locations and exports.
func (l *lead) begin() error {
	t, err := l.newTerm(l.ctx)
	if err != nil {
		return err
	}
	t.lead = l
	l.mu.Lock()
	l.term = t
	l.mu.Unlock()
	t.work.Go(func() { t.targets.Run(t.ctx) })
	t.work.Go(func() { t.locations.Run(t.ctx) })
	t.work.Go(func() { t.exports.Run(t.ctx) })
	t.work.Go(func() {
		if objects.Await(t.ctx, t.targets.Ready()) {
			l.review() // the SyncTarget may be gone already
		}
	})
	t.run(t.ctx, l.targetsLoop(t), l.locationsLoop(t))
	return nil
}

// stop ends the term, if there is one.
func (l *lead) stop() {
	l.mu.Lock()
	t := l.term
	l.term = nil
	l.mu.Unlock()
	if t != nil {
		l.finish(t)
	}
}

// finish waits until nothing of a term runs that is not the current one any more.
func (l *lead) finish(t *term) {
	t.end()
	t.work.Wait()
	l.mu.Lock()
	clear(l.fleets)
	l.mu.Unlock()
	l.tenants.reset()
}
