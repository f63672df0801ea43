// Package agent runs in a physical cluster, or beside it, and works on it for one SyncTarget. It
// only calls out: to its view at the server, and to the physical cluster.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/physical"
	"github.com/unforked/kcp/internal/workload/syncer"
	"github.com/unforked/kcp/internal/workload/tunnel"
)

// Options configure an agent.
type Options struct {
	// Bootstrap is the kubeconfig that "kubectl kcp workload sync" makes: the URL of the view,
	// the authority of the server, and a token for the first certificate.
	Bootstrap []byte
	// Physical is the configuration for the physical cluster.
	Physical *rest.Config
	// Namespace is the namespace of the agent in the physical cluster. It has the certificate,
	// and the Lease of the replica that leads.
	Namespace string
	// Replica is the name of this replica. It must differ between replicas.
	Replica string
	// Renew is the time between two heartbeats, 10 s by default.
	Renew time.Duration
}

// An agent works for one SyncTarget.
type agent struct {
	Options
	server  *server
	peer    *physical.Peer
	clients *kubernetes.Clientset
	objects dynamic.Interface
	key     string // of the target
	lease   lease
}

// Run runs an agent until ctx ends. It returns an error at once if the options cannot be used.
// All other failures are retried.
func Run(ctx context.Context, o Options) error {
	o.Renew = cmp.Or(o.Renew, 10*time.Second)
	s, err := newServer(o.Bootstrap)
	if err != nil {
		return err
	}
	i, err := syncer.ParsePath(s.url.Path)
	if err != nil {
		return err
	}
	o.Physical = rest.CopyConfig(o.Physical)
	o.Physical.QPS, o.Physical.Burst = 50, 100 // as in push mode
	a := &agent{Options: o, server: s, key: engine.TargetKey(string(i.Compute), i.Target, i.UID)}
	if a.peer, err = physical.New(o.Physical); err != nil {
		return err
	}
	if a.clients, err = kubernetes.NewForConfig(o.Physical); err != nil {
		return err
	}
	if a.objects, err = dynamic.NewForConfig(o.Physical); err != nil {
		return err
	}
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("target", i.Target))
	for ctx.Err() == nil {
		if err := a.elect(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "the agent cannot work; it tries again")
		}
		wait(ctx, time.Second)
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// elect leads while no other replica does.
func (a *agent) elect(ctx context.Context) error {
	var led sync.WaitGroup
	defer led.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Name: "kcp-agent", Namespace: a.Namespace}, Client: a.clients.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: a.Replica}},
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				a.lease.begin(time.Now(), takeover) // the last contact of the previous leader with the server is unknown
				led.Go(func() { a.keep(ctx) })
				led.Go(func() {
					for ctx.Err() == nil {
						if err := a.lead(ctx); err != nil && ctx.Err() == nil {
							klog.FromContext(ctx).Error(err, "the agent cannot work; it tries again")
						}
						wait(ctx, a.Renew)
					}
				})
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return err
	}
	e.Run(ctx)
	return nil
}

// lead works until ctx ends or the certificate cannot be used any more.
func (a *agent) lead(ctx context.Context) error {
	if err := a.peer.Probe(ctx, timeout); err != nil {
		return err
	}
	trouble := a.peer.Check(ctx) // it is reported with the heartbeats
	if a.peer.Cluster == "" {
		return fmt.Errorf("the agent cannot read the UID of the namespace %s: %w", metav1.NamespaceSystem, errors.Join(trouble, errors.New("it needs get on namespaces")))
	}
	c := &credentials{server: a.server, clients: a.clients, namespace: a.Namespace, physical: a.peer.Cluster}
	if err := c.load(ctx); err != nil {
		return err
	}
	w := &work{agent: a, credentials: c, checked: trouble == nil, trouble: trouble, stops: a.mayStop(ctx)}
	defer w.stop()
	for ctx.Err() == nil {
		if err := w.beat(ctx); err != nil {
			return err
		}
		wait(ctx, w.pause())
	}
	return nil
}

// pause is the time between two heartbeats: at most a quarter of the lease.
func (w *work) pause() time.Duration {
	if w.granted == 0 {
		return w.Renew
	}
	return min(w.Renew, w.granted/4)
}

// A work is the work of the leading replica, while the SyncTarget is in pull mode.
type work struct {
	*agent
	credentials *credentials
	checked     bool // the rights in the physical cluster
	trouble     error
	stops       bool          // the agent may end pods
	said        string        // what was logged last about the server
	granted     time.Duration // the lease that the server gave last; 0 before

	end     context.CancelFunc // of the engine and the tunnel; nil if they do not run
	running sync.WaitGroup
}

// beat sends a heartbeat, and starts or stops the engine as the server says. While the server does
// not answer, the engine goes on.
func (w *work) beat(ctx context.Context) error {
	w.probe(ctx)
	if time.Now().After(w.credentials.due()) {
		if err := w.credentials.renew(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "cannot renew the certificate; the next heartbeat tries again")
		}
	}
	b := syncer.Beat{Holder: w.Replica, PhysicalCluster: w.peer.Cluster, Version: w.peer.Version, Stops: w.stops}
	if w.trouble != nil {
		b.Reason, b.Message = workload.Unreachable, limited(w.trouble.Error())
		if p := (*physical.Problem)(nil); errors.As(w.trouble, &p) {
			b.Reason = p.Reason
		}
	}
	var said syncer.BeatResponse
	sent := time.Now()
	err := w.server.call(ctx, "PUT", "/"+syncer.Heartbeat, b, &said)
	switch {
	case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err):
		// The SyncTarget is gone, or the certificate is revoked. Workloads stay as they are.
		w.stop()
		return fmt.Errorf("the server refuses the agent: %w", err)
	case apierrors.IsConflict(err):
		w.stop()
		w.say(ctx, err.Error())
		return nil
	case err != nil:
		w.say(ctx, "the server does not answer; the agent goes on with what it knows: "+err.Error())
		return nil
	case said.Mode != workload.PullMode:
		w.lease.begin(sent, 0)
		w.stop()
		w.say(ctx, "the server works on the physical cluster itself; the agent is idle")
		return nil
	}
	w.say(ctx, "the agent works")
	w.granted = time.Duration(said.LeaseSeconds) * time.Second
	w.lease.begin(sent, w.granted)
	return w.start(ctx)
}

// say logs a text, unless it was the last one.
func (w *work) say(ctx context.Context, text string) {
	if w.said != text {
		klog.FromContext(ctx).Info(text)
		w.said = text
	}
}

func limited(text string) string { return text[:min(len(text), 1024)] }

func (w *work) probe(ctx context.Context) {
	if w.trouble = w.peer.Probe(ctx, timeout); w.trouble == nil && !w.checked {
		w.trouble = w.peer.Check(ctx)
		w.checked = w.trouble == nil
	}
}

// start starts the engine and the tunnel, unless they run.
func (w *work) start(ctx context.Context) error {
	if w.end != nil {
		return nil
	}
	ctx, end := context.WithCancel(ctx)
	d, err := newDesired(ctx, w.server, w.key)
	if err != nil {
		end()
		return err
	}
	e, err := engine.New(w.key, w.Physical, d, nil)
	if err != nil {
		end()
		return err
	}
	handler, err := newProxy(w.Physical)
	if err != nil {
		end()
		return err
	}
	w.end = end
	w.lease.tell(e)
	w.running.Go(func() { d.run(ctx) })
	w.running.Go(func() {
		if d.await(ctx) { // the kinds are known then
			e.Run(ctx)
		}
	})
	w.running.Go(func() { w.connect(ctx, handler) })
	return nil
}

func (w *work) stop() {
	if w.end != nil {
		w.end()
		w.running.Wait()
		w.end = nil
		w.lease.tell(nil)
	}
}

// connect keeps a tunnel open, with the certificate of that time.
func (w *work) connect(ctx context.Context, p *proxy) {
	at := *w.server.url
	at.Path += "/" + syncer.Tunnel
	for ctx.Err() == nil {
		one, cancel := context.WithCancel(ctx)
		used := w.server.certificate.Load()
		var watching sync.WaitGroup
		watching.Go(func() {
			defer cancel()
			for one.Err() == nil && w.server.certificate.Load() == used {
				wait(one, w.Renew)
			}
		})
		err := tunnel.Dialer{URL: &at, TLS: w.server.tls(), Handler: p}.Run(one, func() {})
		cancel()
		watching.Wait()
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("the tunnel to the server ended; the agent opens another one", "err", err)
		}
		wait(ctx, time.Second)
	}
}
