package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/physical"
)

// recorded is how often a heartbeat is written while nothing changes.
const recorded = time.Minute

// A connection is the agent of a SyncTarget in push mode. It has one goroutine for probes, and
// those of the engine while the physical cluster answers. In pull mode, it follows the Lease of the
// agent, and has no goroutine.
type connection struct {
	fleet *fleet
	name  string // of the SyncTarget
	id    string // its key
	mode  workload.SyncMode
	end   context.CancelFunc

	renewed time.Time // by the agent, in mode Pull; guarded by fleet.mu
	seen    time.Time // of the last successful probe, on the clock of the server
	alive   time.Time // of the last sign that the physical cluster lives
	written time.Time // of the last heartbeat
}

// mostTargets is the maximum of connected targets of one compute workspace. Each has goroutines and
// connections.
const mostTargets = 400

// connect starts the agent of a target, unless it runs. It reports false if the workspace has too
// many targets.
func (f *fleet) connect(t *workload.SyncTarget, id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.connections[t.Name]
	if c != nil && c.id == id && c.mode == t.Spec.Mode || f.ctx.Err() != nil {
		return true
	}
	if c == nil && len(f.connections) >= mostTargets {
		return false
	}
	if c != nil {
		c.end()
	}
	ctx, end := context.WithCancel(f.ctx)
	c = &connection{fleet: f, name: t.Name, id: id, mode: t.Spec.Mode, end: end, seen: time.Now(), alive: time.Now()}
	f.connections[t.Name] = c
	if c.mode == workload.PullMode {
		f.followAgents()
		return true
	}
	f.term.work.Go(func() { c.run(ctx) })
	return true
}

func (f *fleet) disconnect(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.connections[name]; c != nil {
		c.end()
		delete(f.connections, name)
	}
}

// run connects until ctx ends. Each round uses the credentials that are stored then.
func (c *connection) run(ctx context.Context) {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("cluster", c.fleet.compute, "target", c.name))
	for ctx.Err() == nil {
		used, err := c.session(ctx)
		if ctx.Err() != nil {
			return
		}
		c.observe(ctx, used, err)
		wait(ctx, c.fleet.options.Renew)
	}
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// A peer is a physical cluster that was reached.
type peer struct {
	*physical.Peer
	credentials string // a hash
	lease       *int32 // seconds, see SyncTargetStatus.LeaseSeconds
}

// session syncs with the physical cluster until it does not answer, or its credentials change.
func (c *connection) session(ctx context.Context) (*peer, error) {
	p, err := c.dial(ctx)
	if err != nil {
		return p, err
	}
	e, err := engine.New(c.id, p.Config, c.fleet.desired(c.id))
	if err != nil {
		return p, err
	}
	ctx, end := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer end()
	running.Go(func() { e.Run(ctx) })
	select {
	case <-e.Synced():
	case <-ctx.Done():
	case <-time.After(c.fleet.options.Expire):
		return p, physical.Because(workload.Unreachable, errors.New("the physical cluster does not answer a list of its Deployments in time"))
	}
	for ctx.Err() == nil {
		err := p.Probe(ctx, c.fleet.options.Expire/2)
		if err != nil && time.Since(c.seen) > c.fleet.options.Expire {
			return p, err
		}
		if err == nil {
			c.observe(ctx, p, nil)
		}
		wait(ctx, c.fleet.options.Renew)
		if text, err := c.kubeconfig(ctx); err == nil && fingerprint(text) != p.credentials {
			return p, nil // connects anew
		}
	}
	return p, nil
}

func fingerprint(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// kubeconfig reads the Secret of the target.
func (c *connection) kubeconfig(ctx context.Context) ([]byte, error) {
	t := c.fleet.targets.Get(kcp.Key{Cluster: c.fleet.compute, Name: c.name})
	if t == nil || t.Spec.Push == nil {
		return nil, physical.Because(workload.KubeconfigInvalid, errors.New("spec.push.kubeconfigSecretRef is not set; kubectl kcp workload sync sets it"))
	}
	cfg, err := c.fleet.server.Own(string(c.fleet.compute))
	if err != nil {
		return nil, err
	}
	secrets, err := client.New[*corev1.Secret, *corev1.SecretList](cfg, string(c.fleet.compute), corev1.SchemeGroupVersion.WithResource("secrets"))
	if err != nil {
		return nil, err
	}
	ref := t.Spec.Push.KubeconfigSecretRef
	s, err := secrets.Namespace(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, physical.Because(workload.KubeconfigInvalid, err)
	}
	text, ok := s.Data[workload.KubeconfigKey]
	if !ok {
		return nil, physical.Because(workload.KubeconfigInvalid, fmt.Errorf("secret %s/%s has no key %q", ref.Namespace, ref.Name, workload.KubeconfigKey))
	}
	return text, nil
}

// observe writes what a probe found to the status of the SyncTarget. It writes changes at once, and
// heartbeats seldom.
func (c *connection) observe(ctx context.Context, p *peer, err error) {
	now := time.Now()
	t := c.fleet.targets.Get(kcp.Key{Cluster: c.fleet.compute, Name: c.name})
	if t == nil {
		return
	}
	if err == nil {
		c.seen = now
	} else if now.Sub(c.seen) > c.fleet.options.Expire {
		err = c.fleet.outside(ctx, t.Spec.Probes, err)
	}
	if lives(err) {
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

// lives reports whether the outcome of a probe shows that the physical cluster lives, or does not show that
// it does not: the server may have lost the credentials.
func lives(err error) bool {
	if err == nil {
		return true
	}
	p := (*physical.Problem)(nil)
	return errors.As(err, &p) && (p.Reason == workload.AgentLost || p.Reason == workload.Unauthorized || p.Reason == workload.TooOld || p.Reason == workload.KubeconfigInvalid)
}

// observed returns the status of a SyncTarget after a probe, and whether it is to be written.
func (c *connection) observed(t *workload.SyncTarget, p *peer, err error, now time.Time) (next *workload.SyncTargetStatus, changed bool) {
	next = t.Status.DeepCopy()
	next.Key = c.id
	if p != nil && p.Version != "" {
		next.Version = p.Version
	}
	if p != nil && next.PhysicalCluster == "" {
		next.PhysicalCluster = p.Cluster
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
	case !expired && lives(err) && next.UnreachableSince != nil:
		next.UnreachableSince = nil
		changed = true
	}
	return next, changed || next.Key != t.Status.Key || next.Version != t.Status.Version || next.PhysicalCluster != t.Status.PhysicalCluster ||
		!equal(next.LeaseSeconds, t.Status.LeaseSeconds)
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
	return ignoreGone(err)
}
