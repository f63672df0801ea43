package pods

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/engine"
)

// again is the default of [Pods.Again].
const again = 30 * time.Second

// untilClosing calls end when the server closes, or once good reports false. The caller calls the result when
// end is not needed any more.
func (p *Pods) untilClosing(end func(), good func() bool) (done func()) {
	from := p.started.Load()
	if from == nil {
		return func() {}
	}
	closing, over := from.server.Closing(), make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		defer end()
		check := time.NewTicker(p.Again)
		defer check.Stop()
		for {
			select {
			case <-closing:
				return
			case <-over:
				return
			case <-check.C:
				if !good() {
					return
				}
			}
		}
	})
	return sync.OnceFunc(func() { close(over); work.Wait() })
}

// registers are the targets of the compute workspaces whose pods have open streams, as they were a short time ago.
// All streams of a compute workspace share one look.
type registers struct {
	mu    sync.Mutex
	of    map[kcp.ClusterName]*register // guarded by mu
	swept time.Time                     // guarded by mu
}

type register struct {
	mu   sync.Mutex // held while the server is asked
	at   time.Time  // guarded by mu
	keys map[string]bool
	used time.Time // guarded by registers.mu
}

// at returns the register of a compute workspace, and forgets those that are used no more.
func (r *registers) at(compute kcp.ClusterName, life time.Duration) *register {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.swept) > life {
		r.swept = now
		for c, of := range r.of {
			if now.Sub(of.used) > 2*life {
				delete(r.of, c)
			}
		}
	}
	of := r.of[compute]
	if of == nil {
		of = &register{}
		r.of[compute] = of
	}
	of.used = now
	return of
}

// registered reports whether the target with a key is still a SyncTarget of a compute workspace, as it was at most half
// the time between two checks ago. While the server cannot tell, it is.
func (p *Pods) registered(ctx context.Context, compute kcp.ClusterName, key string) bool {
	from := p.started.Load()
	if from == nil {
		return true
	}
	r := p.registers.at(compute, p.Again)
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.at) > p.Again/2 {
		keys, err := from.keys(ctx, compute)
		if err != nil {
			return true
		}
		r.at, r.keys = time.Now(), keys
	}
	return r.keys[key]
}

// keys returns the keys of the SyncTargets of a compute workspace. There are none if it does not exist any more, or
// without the export by which consumers have pods.
func (s *sources) keys(ctx context.Context, compute kcp.ClusterName) (map[string]bool, error) {
	keys := map[string]bool{}
	in, err := s.targets.In(string(compute))
	if err != nil {
		return nil, err
	}
	all, err := in.List(ctx, metav1.ListOptions{})
	if err == nil {
		err = s.exported(ctx, compute)
	}
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) { // there is no view of that name, or no such cluster in it
		return keys, nil
	}
	if err != nil {
		return nil, err
	}
	for i := range all.Items {
		keys[keyOf(compute, &all.Items[i])] = true
	}
	return keys, nil
}

// exported returns an error if the export of a compute workspace cannot be used.
func (s *sources) exported(ctx context.Context, compute kcp.ClusterName) error {
	cfg, err := s.view(compute, workload.KubernetesExport)
	if err != nil {
		return err
	}
	of, err := client.New[*workload.Assignment, *workload.AssignmentList](cfg, "*", workload.GroupVersion.WithResource("assignments"))
	if err != nil {
		return err
	}
	_, err = of.List(ctx, metav1.ListOptions{Limit: 1})
	return err
}

// keyOf returns the key of a SyncTarget of a compute workspace.
func keyOf(compute kcp.ClusterName, t *workload.SyncTarget) string {
	return engine.TargetKey(string(compute), t.Name, string(t.UID))
}
