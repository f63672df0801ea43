package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/unforked/kcp/test/child"
)

// lists measures the latency of consistent lists by one client, while the other clients
// write in their own tenants. The writers first write at a fixed rate that does not
// saturate the machine, then as fast as they can.
func lists(ctx context.Context, b *bench) error {
	sides, done, err := b.sides(ctx)
	if err != nil {
		return err
	}
	defer done()
	type load struct {
		name  string
		pause time.Duration // of one writer between two writes
	}
	for _, l := range []load{
		{fmt.Sprintf("consistent list, %d writers of 50/s elsewhere", b.plan.clients), 20 * time.Millisecond},
		{fmt.Sprintf("consistent list, %d writers at full speed elsewhere", b.plan.clients), 0},
	} {
		samples, err := b.inTurns(sides, func(s *side, round int) (sample, error) {
			return b.listRound(ctx, s, fmt.Sprintf("list-%d-%d", round, l.pause.Milliseconds()), l.pause)
		})
		if err != nil {
			return err
		}
		for name, x := range samples {
			b.report.addTime(name, l.name, "p50", x.percentile(50))
			b.report.addTime(name, l.name, "p99", x.percentile(99))
		}
	}
	return nil
}

// inTurns measures every side in each round, and returns all operations by subject.
func (b *bench) inTurns(sides []*side, measure func(s *side, round int) (sample, error)) (map[string]*sample, error) {
	samples := map[string]*sample{}
	for _, s := range sides {
		samples[s.subject] = &sample{}
	}
	for round := range b.plan.rounds {
		for _, s := range sides {
			x, err := measure(s, round)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.subject, err)
			}
			samples[s.subject].merge(x)
		}
	}
	return samples, nil
}

// listRound measures lists while the other clients write, and stops these at the end.
func (b *bench) listRound(ctx context.Context, s *side, name string, every time.Duration) (sample, error) {
	listed, err := b.fill(ctx, s, name)
	if err != nil {
		return sample{}, err
	}
	lister, err := child.Connect(ctx, s.user, 1)
	if err != nil {
		return sample{}, err
	}
	defer child.CloseAll(lister)
	var elsewhere []tenant
	for i, c := range s.clients {
		t, err := s.newTenant(ctx, c, fmt.Sprintf("%s-writer-%d", name, i))
		if err != nil {
			return sample{}, err
		}
		if err := b.create(ctx, c, t.configMaps, "written"); err != nil {
			return sample{}, err
		}
		elsewhere = append(elsewhere, t)
	}
	writing, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var (
		writers  sync.WaitGroup
		finished atomic.Bool
	)
	for i, c := range s.clients {
		writers.Go(func() {
			for n := 1; !finished.Load() && writing.Err() == nil; n++ {
				if err := b.update(writing, c, elsewhere[i].configMaps+"/written", fmt.Sprint(n)); err != nil {
					stop(fmt.Errorf("writer: %w", err)) // ends the lists too
					return
				}
				if every > 0 && child.Pause(writing, every) != nil {
					return
				}
			}
		})
	}
	x, err := s.load(writing, lister, b.plan.lists/b.plan.rounds, func(ctx context.Context, c *client, _ int) error {
		_, err := c.Call(ctx, http.MethodGet, listed.all, b.encoding.media, nil)
		return err
	})
	finished.Store(true) // a write in flight may end, so that the server is left in peace
	writers.Wait()
	if err == nil {
		err = context.Cause(writing) // a writer that failed after the last list
	}
	return x, err
}

// makeTenants measures the time until a config map can be written in a new tenant, with one
// client and with all.
func makeTenants(ctx context.Context, b *bench) error {
	sides, done, err := b.sides(ctx)
	if err != nil {
		return err
	}
	defer done()
	for _, l := range []struct{ clients, count int }{{1, b.plan.single}, {b.plan.clients, b.plan.many}} {
		samples, err := b.inTurns(sides, func(s *side, round int) (sample, error) {
			return s.load(ctx, s.clients[:l.clients], l.count/b.plan.rounds, func(ctx context.Context, c *client, i int) error {
				t, err := s.newTenant(ctx, c, fmt.Sprintf("tenant-%d-%d-%d", l.clients, round, i))
				if err != nil {
					return err
				}
				return b.create(ctx, c, t.configMaps, "first")
			})
		})
		if err != nil {
			return err
		}
		for name, x := range samples {
			of := fmt.Sprintf("workspace (stock: namespace) until usable, clients: %d", l.clients)
			b.report.add(name, of, "rate", perSecond, x.rate())
			b.report.addTime(name, of, "p50", x.percentile(50))
			b.report.addTime(name, of, "p99", x.percentile(99))
			b.report.addTime(name, of, "server CPU each", x.each(x.server))
			if x.beside > 0 {
				b.report.addTime(name, of, "(controller manager CPU each)", x.each(x.beside))
			}
			b.report.addTime(name, of, "(client CPU each)", x.each(x.client))
		}
	}
	return nil
}

// footprints measures the memory and storage of one more tenant on an idle server.
func footprints(ctx context.Context, b *bench) error {
	var counts []int
	for f := range strings.SplitSeq(b.plan.footprints, ",") {
		n, err := strconv.Atoi(f)
		if err != nil || n < 1 || len(counts) > 0 && n <= counts[len(counts)-1] {
			return fmt.Errorf("-footprints=%s: want ascending positive numbers", b.plan.footprints)
		}
		counts = append(counts, n)
	}
	var servers []*server
	if b.short { // memory cannot be measured with tiny counts
		shared, err := b.servers(ctx)
		if err != nil {
			return err
		}
		servers = shared
	}
	for len(servers) < len(b.subjects) {
		s, err := b.fresh(ctx, b.subjects[len(servers)], true)
		if err != nil {
			return err
		}
		defer s.stop()
		servers = append(servers, s)
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var (
		turn sync.Mutex // one makes tenants at a time; the waits overlap
		wg   sync.WaitGroup
	)
	for _, s := range servers {
		wg.Go(func() {
			if err := b.grow(ctx, s, counts, &turn); err != nil {
				fail(fmt.Errorf("%s: %w", s.subject, err))
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// grow creates tenants up to each count, waits for the settle time and measures.
func (b *bench) grow(ctx context.Context, s *server, counts []int, turn *sync.Mutex) error {
	clients, err := child.Connect(ctx, s.user, b.plan.clients)
	if err != nil {
		return err
	}
	defer child.CloseAll(clients)
	if err := child.Pause(ctx, b.plan.settle); err != nil {
		return err
	}
	empty, err := s.footprint(ctx)
	if err != nil {
		return err
	}
	b.report.add(s.subject, "empty server, settled", "memory", bytesUnit, empty.memory)
	b.report.add(s.subject, "empty server, settled", "live heap", bytesUnit, empty.liveHeap)
	made := 0
	for _, n := range counts {
		turn.Lock()
		_, err := s.load(ctx, clients, n-made, func(ctx context.Context, c *client, i int) error {
			_, err := s.newTenant(ctx, c, fmt.Sprintf("footprint-%d", made+i))
			return err
		})
		turn.Unlock()
		if err != nil {
			return err
		}
		made = n
		if err := child.Pause(ctx, b.plan.settle); err != nil {
			return err
		}
		f, err := s.footprint(ctx)
		if err != nil {
			return err
		}
		b.reportEach(s.subject, n, empty, f)
	}
	return nil
}

// reportEach reports the average cost of one of n tenants.
func (b *bench) reportEach(subject string, n int, empty, full footprint) {
	of := fmt.Sprintf("one more workspace (stock: namespace), of %d", n)
	stored := "etcd, bytes in use"
	if full.files { // free pages are included, so the figures cannot be compared
		stored = "etcd, size of its file"
	}
	for _, x := range []struct {
		figure        string
		u             unit
		before, after float64
	}{
		{"memory", bytesUnit, empty.memory, full.memory},
		{"live heap", bytesUnit, empty.liveHeap, full.liveHeap},
		{"goroutines", plainCount, empty.goroutines, full.goroutines},
		{"metric series", plainCount, empty.series, full.series},
		{stored, bytesUnit, empty.stored, full.stored},
	} {
		b.report.add(subject, of, x.figure, x.u, (x.after-x.before)/float64(n))
	}
}
