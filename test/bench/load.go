package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/unforked/kcp/test/child"
)

// sample holds the time and processor time of a number of equal operations.
type sample struct {
	wall      time.Duration
	latencies []time.Duration
	server    time.Duration // CPU of the API server and etcd
	beside    time.Duration // CPU of the controller manager
	client    time.Duration // CPU of this program
}

// merge adds the operations of another round.
func (s *sample) merge(o sample) {
	s.wall += o.wall
	s.latencies = append(s.latencies, o.latencies...)
	s.server += o.server
	s.beside += o.beside
	s.client += o.client
}

func (s *sample) rate() float64 { return float64(len(s.latencies)) / s.wall.Seconds() }

func (s *sample) each(d time.Duration) time.Duration {
	return d / time.Duration(max(1, len(s.latencies)))
}

func (s *sample) percentile(p float64) time.Duration {
	slices.Sort(s.latencies)
	return child.Percentile(s.latencies, p)
}

// operation is one step of a load; i counts from 0 over all clients.
type operation func(ctx context.Context, c *client, i int) error

// load runs an operation n times and measures the servers. Each client runs one operation
// at a time. The first failure ends the load.
func (s *server) load(ctx context.Context, clients []*client, n int, do operation) (sample, error) {
	var out sample
	server, err := sumCPU(s.measured)
	if err != nil {
		return out, err
	}
	beside, err := sumCPU(s.beside)
	if err != nil {
		return out, err
	}
	own, begin := ownCPU(), time.Now()
	out.latencies, err = spread(ctx, clients, n, do)
	out.wall, out.client = time.Since(begin), ownCPU()-own
	if err != nil {
		return out, err
	}
	after, err := sumCPU(s.measured)
	afterBeside, err2 := sumCPU(s.beside)
	out.server, out.beside = after-server, afterBeside-beside
	return out, errors.Join(err, err2)
}

// spread divides n operations among the clients and returns the latency of each.
func spread(ctx context.Context, clients []*client, n int, do operation) ([]time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg    sync.WaitGroup
		next  atomic.Int64
		times = make([]time.Duration, n)
	)
	for _, c := range clients {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				begin := time.Now()
				if err := do(ctx, c, i); err != nil {
					cancel(err)
					return
				}
				times[i] = time.Since(begin)
			}
		})
	}
	wg.Wait()
	return times, context.Cause(ctx)
}

// ownCPU returns the processor time of this program.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0 // cannot happen for the calling process
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
