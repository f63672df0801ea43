package external

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/storage/etcd/outage"
)

const (
	// suspectAfter is how long a request may wait before etcd is probed.
	suspectAfter = 500 * time.Millisecond
	probeEvery   = 500 * time.Millisecond
)

// A circuit knows whether an etcd outside this process serves consistent reads. A request
// that fails or takes long starts a probe. If the probe fails too, the circuit opens: all
// requests, also those in flight, fail at once until a probe succeeds.
type circuit struct {
	kv        clientv3.KV     // for probes
	endpoints func() []string // a probe asks each
	ctx       context.Context // of the probes; close cancels it
	end       context.CancelFunc
	probes    sync.WaitGroup

	mu      sync.Mutex
	probing bool
	down    error // why the circuit is open; nil if it is closed
	// opened is cancelled when the circuit opens.
	opened context.Context
	open   context.CancelCauseFunc
}

func newCircuit(kv clientv3.KV, endpoints func() []string) *circuit {
	c := &circuit{kv: kv, endpoints: endpoints}
	c.ctx, c.end = context.WithCancel(context.Background())
	c.opened, c.open = context.WithCancelCause(c.ctx)
	return c
}

// close stops the probes and waits for them.
func (c *circuit) close() {
	c.end()
	c.probes.Wait()
}

// enter returns a context for a request, which is cancelled when the circuit opens. If the
// circuit is open already, enter returns the reason. The caller must call leave after the
// request.
func (c *circuit) enter(ctx context.Context) (request context.Context, leave func(), down error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down != nil {
		return nil, nil, c.down
	}
	request, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(c.opened, func() { cancel(outage.ErrUnavailable) })
	late := time.AfterFunc(suspectAfter, func() { c.suspect() })
	return request, func() {
		late.Stop()
		unhook()
		cancel(nil)
	}, nil
}

// suspect starts a probe unless one is running.
func (c *circuit) suspect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.probing || c.ctx.Err() != nil {
		return
	}
	c.probing = true
	c.probes.Go(c.probe)
}

// probe opens the circuit if etcd does not answer, and repeats the probe until etcd does.
func (c *circuit) probe() {
	wait := time.NewTimer(0)
	defer wait.Stop()
	for c.ctx.Err() == nil {
		err := c.once()
		if c.ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		before := c.down
		if c.down = err; err == nil {
			if before != nil {
				c.opened, c.open = context.WithCancelCause(c.ctx)
			}
			c.probing = false
		} else if before == nil {
			c.open(outage.ErrUnavailable)
		}
		c.mu.Unlock()
		switch {
		case err == nil && before != nil:
			klog.Background().Info("Etcd answers again")
			return
		case err == nil:
			return
		case before == nil:
			klog.Background().Error(err, "Etcd does not answer or has no quorum; requests are answered 503 until it does")
		}
		wait.Reset(probeEvery)
		select {
		case <-wait.C:
		case <-c.ctx.Done():
		}
	}
}

// once sends one read per endpoint. One answer is enough.
func (c *circuit) once() error {
	ctx, cancel := context.WithTimeout(c.ctx, ReadTimeout)
	defer cancel()
	all := len(c.endpoints())
	answers := make(chan error, all)
	for range all { // the client rotates its endpoints
		c.probes.Go(func() {
			_, err := c.kv.Get(ctx, "\x00", clientv3.WithCountOnly())
			if err != nil && !outage.Is(err) {
				err = nil // an answer, for example that this user may not read the key
			}
			answers <- err
		})
	}
	var err error
	for range all {
		if err = <-answers; err == nil {
			return nil
		}
	}
	return err
}
