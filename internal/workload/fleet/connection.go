package fleet

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/unforked/kcp"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/objects"
	"github.com/unforked/kcp/internal/workload/physical"
	"github.com/unforked/kcp/internal/workload/push"
)

// recorded is how often a heartbeat is written while nothing changes.
const recorded = time.Minute

// A connection is the agent of a SyncTarget in push mode. The loop of probes works on it, and the engine
// while the physical cluster answers: it has goroutines of its own for neither. In pull mode, it follows
// the Lease of the agent.
type connection struct {
	fleet *fleet
	name  string // of the SyncTarget
	id    string // its key
	mode  workload.SyncMode
	uses  *use
	ctx   context.Context
	end   context.CancelFunc

	session *session  // nil while the physical cluster does not answer
	renewed time.Time // by the agent, in mode Pull; guarded by fleet.mu
	seen    time.Time // of the last successful probe, on the clock of the server
	heard   time.Time // of the last heartbeat or successful probe, zero before the first
	alive   time.Time // of the last sign that the physical cluster lives
	asked   time.Time // of the last probe
	written time.Time // of the last heartbeat
}

// A session is the work on a physical cluster from the first probe that succeeds until it does not answer
// any more, or its credentials change.
type session struct {
	*push.Peer
	engine  *engine.Engine
	ctx     context.Context
	end     context.CancelFunc
	ended   chan struct{} // closed when nothing of it runs any more
	syncing bool
}

// connect starts the agent of a target, unless it runs. It returns an error if there are too many
// targets.
func (f *fleet) connect(t *workload.SyncTarget, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.connections[t.Name]
	if c != nil && c.id == id && c.mode == t.Spec.Mode || f.ctx.Err() != nil {
		return nil
	}
	if c == nil && len(f.connections) >= mostTargets {
		return errTooManyHere
	}
	if c != nil {
		f.hangUp(c)
	}
	of := f.tenants.take(f.server.Tenant(f.compute))
	if of == nil {
		return errTooMany
	}
	ctx, end := context.WithCancel(f.ctx)
	c = &connection{fleet: f, name: t.Name, id: id, mode: t.Spec.Mode, uses: of, ctx: ctx, end: end, seen: time.Now(), alive: time.Now(), asked: time.Now()}
	f.connections[t.Name] = c
	if c.mode == workload.PullMode {
		f.followAgents()
	} else if f.probes != nil {
		f.probes(kcp.Key{Cluster: f.compute, Name: t.Name})
	}
	return nil
}

// hangUp ends a connection. The lock of the fleet is held.
func (f *fleet) hangUp(c *connection) {
	c.end()
	f.tenants.give(c.uses)
	delete(f.connections, c.name)
}

func (f *fleet) disconnect(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.connections[name]; c != nil {
		f.hangUp(c)
	}
}

// probeLoop probes the physical clusters in push mode. Each has a worker while it is asked: one that
// does not answer delays no other.
func (f *fleet) probeLoop() kcp.Loop {
	return kcp.Loop{Name: "workload-probes", Workers: mostTargets + 1, Do: f.probe, On: []kcp.Source{{Subscribe: func(wake func(kcp.Key)) func() {
		f.mu.Lock()
		f.probes = wake
		f.mu.Unlock()
		f.probeAll()
		return nil
	}}}}
}

// probeAll makes the loop probe all physical clusters now.
func (f *fleet) probeAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name := range f.connections {
		if f.probes != nil {
			f.probes(kcp.Key{Cluster: f.compute, Name: name})
		}
	}
}

func (f *fleet) probe(ctx context.Context, key kcp.Key) error {
	f.mu.Lock()
	c := f.connections[key.Name]
	f.mu.Unlock()
	if c == nil || c.mode == workload.PullMode {
		return nil
	}
	c.round(klog.NewContext(c.ctx, klog.FromContext(ctx).WithValues("target", c.name)))
	return kcp.After(f.options.Renew)
}

// round connects, or probes a physical cluster that is connected. Each connection uses the credentials
// that are stored then. Ctx is that of the connection.
func (c *connection) round(ctx context.Context) {
	defer func() { c.asked = time.Now() }()
	if s := c.session; s != nil {
		err := s.Probe(ctx, c.fleet.options.Expire/2)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil, physical.Unsure(err):
			c.observe(ctx, peerOf(s.Peer), err)
		case time.Since(c.seen) > c.fleet.options.Expire:
			c.close()
			c.observe(ctx, peerOf(s.Peer), err)
			return
		}
		if text, err := c.workspace().Kubeconfig(ctx, c.target()); err != nil || push.Fingerprint(text) == s.Credentials {
			s.sync(c.fleet)
			return
		}
		c.close()
	}
	used, err := c.open(ctx)
	if ctx.Err() == nil {
		c.observe(ctx, peerOf(used), err)
	}
}

// target returns the SyncTarget, nil if there is none any more.
func (c *connection) target() *workload.SyncTarget {
	return c.fleet.term.targets.Get(kcp.Key{Cluster: c.fleet.compute, Name: c.name})
}

func (c *connection) workspace() push.Workspace {
	return push.Workspace{Server: c.fleet.server, Name: c.fleet.compute}
}

// A peer is what a physical cluster, or its agent, says of itself.
type peer struct {
	version, cluster string
	lease            *int32 // seconds, see SyncTargetStatus.LeaseSeconds
}

func peerOf(p *push.Peer) *peer {
	if p == nil {
		return nil
	}
	return &peer{version: p.Version, cluster: p.Cluster}
}

// open begins a session.
func (c *connection) open(ctx context.Context) (*push.Peer, error) {
	p, err := c.workspace().Dial(ctx, c.target(), c.fleet.options.Expire/2)
	if err != nil {
		return p, err
	}
	s := &session{Peer: p, ended: make(chan struct{})}
	if s.engine, err = engine.New(c.id, p.Work(c.fleet.weights, c.uses.tenant), c.fleet.consumers.Desired(c.id), &c.uses.objects); err != nil {
		return p, err
	}
	if most := c.fleet.options.Objects; most > 0 {
		s.engine.Limit(most)
	}
	s.ctx, s.end = context.WithCancel(ctx)
	late := time.AfterFunc(c.fleet.options.Expire, s.end)
	err = s.engine.Sweep(s.ctx)
	if !late.Stop() || err != nil {
		s.end()
		s.engine.Wait()
		return p, physical.Unanswered("the physical cluster does not answer lists of its objects in time", err)
	}
	c.session = s
	work := &c.fleet.term.work
	work.Add(1)
	context.AfterFunc(s.ctx, func() {
		defer work.Done()
		defer close(s.ended)
		s.engine.Wait()
	})
	s.sync(c.fleet)
	return p, nil
}

// sync starts the engine once the caches are complete that it needs. While there is no consumer, they
// are empty, and the engine has nothing to do.
func (s *session) sync(f *fleet) {
	select {
	case <-f.consumers.Settled():
	default:
		return
	}
	if s.syncing {
		return
	}
	s.syncing = true
	s.engine.Start()
	if s.ctx.Err() != nil {
		s.engine.Wait() // the session may have ended before
	}
}

// close ends the session.
func (c *connection) close() {
	c.session.end()
	<-c.session.ended
	c.session = nil
}

// observe writes what a probe found to the status of the SyncTarget. It writes changes at once, and
// heartbeats seldom.
func (c *connection) observe(ctx context.Context, p *peer, err error) {
	now := time.Now()
	t := c.target()
	if t == nil {
		return
	}
	if physical.Unsure(err) {
		// The time in which the server did not ask tells nothing: neither clock runs.
		c.seen, c.alive = c.seen.Add(now.Sub(c.asked)), c.alive.Add(now.Sub(c.asked))
		if t.Status.Conditions.Get(conditions.Ready) != nil {
			return
		}
	}
	if err == nil {
		c.seen, c.heard = now, now
	} else if now.Sub(c.seen) > c.fleet.options.Expire {
		err = c.workspace().Outside(ctx, t.Spec.Probes, err)
	}
	if physical.Lives(err) {
		c.alive = now
	}
	for range 3 { // others write the status, too
		next, changed := c.observed(t, p, err, now)
		if !changed {
			return
		}
		written := c.fleet.saveStatus(ctx, t, next)
		if written == nil && err == nil {
			c.written = now
		}
		if !apierrors.IsConflict(written) {
			logWrite(ctx, written)
			return
		}
		if t, written = c.fleet.liveTarget(ctx, c.name); written != nil {
			logWrite(ctx, written)
			return
		}
	}
}

func logWrite(ctx context.Context, err error) {
	if err != nil {
		klog.FromContext(ctx).V(2).Info("cannot write the status of a SyncTarget; the next probe tries again", "err", err)
	}
}

// observed returns the status of a SyncTarget after a probe, and whether it is to be written.
func (c *connection) observed(t *workload.SyncTarget, p *peer, err error, now time.Time) (next *workload.SyncTargetStatus, changed bool) {
	next = t.Status.DeepCopy()
	next.Key = c.id
	if p != nil && p.version != "" {
		next.Version = p.version
	}
	if p != nil && next.PhysicalCluster == "" {
		next.PhysicalCluster = p.cluster
	}
	if p != nil {
		next.LeaseSeconds = p.lease
	}
	changed = setHealth(next, err, now)
	switch expired := now.Sub(c.alive) > c.fleet.options.Expire; {
	case err == nil && (changed || now.Sub(c.written) > recorded):
		next.LastSyncerHeartbeatTime, next.UnreachableSince = &metav1.Time{Time: now}, nil
		changed = true
	case err == nil:
	case expired && next.UnreachableSince == nil && next.LastSyncerHeartbeatTime != nil:
		next.UnreachableSince = &metav1.Time{Time: now}
		changed = true
	case !expired && physical.Lives(err) && next.UnreachableSince != nil:
		next.UnreachableSince = nil
		changed = true
	}
	if last := next.LastSyncerHeartbeatTime; err != nil && changed && last != nil && c.heard.After(last.Time) {
		next.LastSyncerHeartbeatTime = &metav1.Time{Time: c.heard} // heartbeats are written seldom
	}
	return next, changed || next.Key != t.Status.Key || next.Version != t.Status.Version || next.PhysicalCluster != t.Status.PhysicalCluster ||
		!ptr.Equal(next.LeaseSeconds, t.Status.LeaseSeconds)
}

// setHealth sets the conditions of a target and reports whether one changed.
func setHealth(s *workload.SyncTargetStatus, err error, now time.Time) bool {
	reason, message := "", ""
	if err != nil {
		reason, message = workload.Unreachable, limit(err.Error())
		if p := (*physical.Problem)(nil); errors.As(err, &p) {
			reason = p.Reason
		}
	}
	states := map[conditions.Type]bool{
		conditions.Ready:          err == nil,
		workload.HeartbeatHealthy: err == nil,
		workload.APIServerHealthy: err == nil || reason != workload.Unreachable && reason != workload.DownByProbes,
		workload.SyncerAuthorized: err == nil || reason != workload.Unauthorized,
	}
	changed := false
	for _, of := range []conditions.Type{conditions.Ready, workload.HeartbeatHealthy, workload.APIServerHealthy, workload.SyncerAuthorized} {
		next := conditions.Condition{Type: of, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)}
		if !states[of] {
			next.Status, next.Severity, next.Reason, next.Message = metav1.ConditionFalse, conditions.SeverityError, reason, message
		}
		if have := s.Conditions.Get(of); have != nil && have.Status == next.Status {
			next.LastTransitionTime = have.LastTransitionTime
		}
		changed = s.Conditions.Set(next) || changed
	}
	return changed
}

func limit(text string) string { return text[:min(len(text), 1024)] }

// liveTarget reads a SyncTarget from the server.
func (f *fleet) liveTarget(ctx context.Context, name string) (*workload.SyncTarget, error) {
	in, err := f.writeTargets.In(string(f.compute))
	if err != nil {
		return nil, err
	}
	return in.Get(ctx, name, metav1.GetOptions{})
}

// saveStatus writes a status of a SyncTarget, unless that is another one than t by now.
func (f *fleet) saveStatus(ctx context.Context, t *workload.SyncTarget, next *workload.SyncTargetStatus) error {
	in, err := f.writeTargets.In(string(f.compute))
	if err != nil {
		return err
	}
	content := map[string]any{"unreachableSince": nil, "leaseSeconds": nil}
	text, err := json.Marshal(next)
	if err == nil {
		err = json.Unmarshal(text, &content)
	}
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": t.ResourceVersion}, "status": content})
	if err != nil {
		return err
	}
	_, err = in.Patch(ctx, t.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return objects.IgnoreGone(err)
}
