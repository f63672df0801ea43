package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/objects"
	"github.com/unforked/kcp/internal/workload/physical"
	"github.com/unforked/kcp/internal/workload/syncer"
)

// agents follows the Leases of the agents of a fleet, for all its SyncTargets in pull mode.
type agents struct {
	leases *kcp.Kind[*coordinationv1.Lease]
	wake   func(kcp.Key)
}

// followAgents makes the fleet look at the agents anew. The first time, it begins to follow their
// Leases. The lock of the fleet is held.
func (f *fleet) followAgents() {
	if f.agents != nil {
		if f.agents.wake != nil {
			for name := range f.connections {
				f.agents.wake(kcp.Key{Cluster: f.compute, Name: name})
			}
		}
		return
	}
	in, err := f.leasesIn()
	if err != nil {
		klog.ErrorS(err, "cannot follow the agents of physical clusters", "cluster", f.compute)
		return
	}
	leases := objects.KindOf("leases of agents", in)
	a := &agents{leases: leases}
	f.agents = a
	ctx := f.ctx
	f.term.work.Go(func() { leases.Run(ctx) })
	f.term.run(ctx, kcp.Loop{Name: "workload-agents", Workers: 16, Do: f.beat, On: []kcp.Source{
		leases.Wakes(func(l *coordinationv1.Lease) []kcp.Key { return []kcp.Key{{Cluster: f.compute, Name: l.Name}} }),
		f.connected(a),
	}})
}

// connected is a source of the SyncTargets in pull mode.
func (f *fleet) connected(a *agents) kcp.Source {
	return kcp.Source{Subscribe: func(wake func(kcp.Key)) func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		a.wake = wake
		for name := range f.connections {
			wake(kcp.Key{Cluster: f.compute, Name: name})
		}
		return nil
	}}
}

// leasesIn returns a client for the Leases in the namespace of SyncTargets.
func (f *fleet) leasesIn() (*client.Client[*coordinationv1.Lease, *coordinationv1.LeaseList], error) {
	cfg, err := f.server.Own(string(f.compute))
	if err != nil {
		return nil, err
	}
	all, err := client.New[*coordinationv1.Lease, *coordinationv1.LeaseList](cfg, string(f.compute), coordinationv1.SchemeGroupVersion.WithResource("leases"))
	if err != nil {
		return nil, err
	}
	return all.Namespace(workload.TargetsNamespace), nil
}

// beat looks at the Lease of an agent. Its time is only compared with the one before: what counts is
// when this server saw it change.
func (f *fleet) beat(ctx context.Context, key kcp.Key) error {
	f.mu.Lock()
	c := f.connections[key.Name]
	f.mu.Unlock()
	t := f.term.targets.Get(key)
	if c == nil || c.mode != workload.PullMode || t == nil {
		return nil
	}
	l := f.agents.leases.Get(kcp.Key{Cluster: f.compute, Namespace: workload.TargetsNamespace, Name: key.Name})
	ours := l != nil && l.Spec.RenewTime != nil && slices.ContainsFunc(l.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == t.UID })
	now := time.Now()
	switch {
	case ours && !f.lastBeat(c).Equal(l.Spec.RenewTime.Time):
		// The first Lease that this server sees may be old: the next one tells.
		first := f.lastBeat(c).IsZero() && t.Status.LastSyncerHeartbeatTime != nil
		f.mu.Lock()
		c.renewed = l.Spec.RenewTime.Time
		f.mu.Unlock()
		if first {
			break
		}
		p, err := beatOf(l)
		c.observe(ctx, p, err)
	case !ours && t.Status.LastSyncerHeartbeatTime == nil:
		c.observe(ctx, nil, physical.Because(workload.AgentMissing, errors.New("the agent of the physical cluster has not connected yet")))
	case now.Sub(c.seen) > f.options.Expire:
		c.observe(ctx, nil, physical.Because(workload.Unreachable, fmt.Errorf("the agent of the physical cluster has not reported for %s", f.options.Expire)))
	}
	return kcp.After(f.options.Renew)
}

// lastBeat returns the time in the last Lease of an agent that this server saw.
func (f *fleet) lastBeat(c *connection) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return c.renewed
}

// lapsed reports whether the server has no newer heartbeat of the agent of a target than this fleet saw. An
// agent that is back says so first, and then looks whether it still has its part.
func (f *fleet) lapsed(ctx context.Context, target string) (bool, error) {
	f.mu.Lock()
	name, renewed := "", time.Time{}
	for _, c := range f.connections {
		if c.id == target {
			name, renewed = c.name, c.renewed
		}
	}
	f.mu.Unlock()
	if name == "" {
		return false, nil
	}
	in, err := f.leasesIn()
	if err != nil {
		return false, err
	}
	l, err := in.Get(ctx, name, metav1.GetOptions{}) // the cache may be late
	if err != nil || l.Spec.RenewTime == nil {
		return false, err
	}
	return l.Spec.RenewTime.Time.Equal(renewed), nil
}

// beatOf returns what an agent reported with its last heartbeat.
func beatOf(l *coordinationv1.Lease) (*peer, error) {
	var b syncer.Beat
	if err := json.Unmarshal([]byte(l.Annotations[workload.BeatAnnotation]), &b); err != nil {
		return nil, physical.Because(workload.Unreachable, fmt.Errorf("the heartbeat of the agent cannot be read: %w", err))
	}
	p := &peer{version: b.Version, cluster: b.PhysicalCluster}
	if b.Reason != "" {
		return p, physical.Because(b.Reason, errors.New(b.Message))
	}
	if b.Stops {
		p.lease = l.Spec.LeaseDurationSeconds
	}
	return p, nil
}

// source returns what the agents of a compute workspace work from. The server that leads has it
// already. Others begin to follow the workspace, until end is called or the server leads.
func (m *manager) source(ctx context.Context, compute kcp.ClusterName) (*syncer.Source, func(), error) {
	if f := m.leading(compute); f != nil {
		return f.consumers.Source(f.ctx.Done()), func() {}, nil
	}
	t, err := m.newTerm(context.Background())
	if err != nil {
		return nil, nil, err
	}
	f, err := newFleet(ctx, m, t, compute)
	if err != nil {
		t.end()
		return nil, nil, err
	}
	m.mu.Lock()
	if leads := m.fleets[compute]; leads != nil {
		m.mu.Unlock()
		t.end()
		return leads.consumers.Source(leads.ctx.Done()), func() {}, nil
	}
	f.follow()
	m.followed[compute] = append(m.followed[compute], t)
	m.mu.Unlock()
	err = m.server.Go(func(ctx context.Context) {
		defer context.AfterFunc(ctx, t.end)()
		<-t.ctx.Done()
		t.work.Wait()
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.followed[compute] = slices.DeleteFunc(m.followed[compute], func(of *term) bool { return of == t }); len(m.followed[compute]) == 0 {
			delete(m.followed, compute)
		}
	})
	if err != nil {
		t.end()
		return nil, nil, err
	}
	return f.consumers.Source(t.ctx.Done()), t.end, nil
}

// leading returns the fleet of a compute workspace if this server leads, or nil.
func (m *manager) leading(compute kcp.ClusterName) *fleet {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fleets[compute]
}
