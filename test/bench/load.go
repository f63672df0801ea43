package main

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// sample is what a number of equal operations took.
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
	return percentile(s.latencies, p)
}

// percentile is the nearest rank in sorted times.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	i := int(math.Ceil(p/100*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// operation is one step of a load; i counts from 0 over all clients.
type operation func(ctx context.Context, c *client, i int) error

// load runs an operation n times, every client one after the other, and
// measures the servers meanwhile. The first failure ends it.
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

// spread shares n operations among the clients and returns how long each took.
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

// ownCPU is the processor time of this program.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0 // cannot happen for the calling process
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// pause waits for d.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
