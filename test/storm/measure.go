package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp/test/child"
)

const (
	pace    = 20 * time.Millisecond // interval of the quiet tenant's requests
	timeout = 20 * time.Second      // of the quiet tenant's requests
)

// latencies are those of one kind of request of the quiet tenant.
type latencies struct {
	times  []time.Duration // sorted
	failed map[string]int  // by reason
}

func (l *latencies) add(d time.Duration, err error) {
	l.times = append(l.times, d)
	if err == nil {
		return
	}
	if l.failed == nil {
		l.failed = map[string]int{}
	}
	reason := string(apierrors.ReasonForError(err))
	if reason == "" {
		reason = "no answer"
	}
	l.failed[reason]++
}

func (l *latencies) p(percent float64) time.Duration { return child.Percentile(l.times, percent) }

func (l *latencies) errors() (n int) {
	for _, each := range l.failed {
		n += each
	}
	return n
}

// A quiet is the result of the quiet tenant.
type quiet struct{ get, create latencies }

// measure lets the quiet tenant get and create config maps for a while.
func (w *world) measure(ctx context.Context, d time.Duration) (q quiet, err error) {
	c, err := child.Connect(context.WithoutCancel(ctx), w.as(quietToken), 2)
	if err != nil {
		return q, err
	}
	defer child.CloseAll(c)
	at := w.quiet + configMaps
	name := fmt.Sprint("quiet-", time.Now().UnixNano())
	if _, err := c[0].Call(context.WithoutCancel(ctx), http.MethodPost, at, child.JSON, quietConfigMap(name)); err != nil && !apierrors.IsTooManyRequests(err) {
		return q, err
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var both sync.WaitGroup
	both.Go(func() {
		repeat(ctx, &q.get, func(ctx context.Context, _ int) error {
			_, err := c[0].Call(ctx, http.MethodGet, at+"/"+name, child.JSON, nil)
			return err
		})
	})
	both.Go(func() {
		repeat(ctx, &q.create, func(ctx context.Context, i int) error {
			_, err := c[1].Call(ctx, http.MethodPost, at, child.JSON, quietConfigMap(fmt.Sprint(name, "-", i)))
			return err
		})
	})
	both.Wait()
	slices.Sort(q.get.times)
	slices.Sort(q.create.times)
	return q, nil
}

func quietConfigMap(name string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"a":"b"}}`, name)
}

// repeat starts a request at an even pace until ctx ends, without waiting for answers: a client
// that waits for a slow answer sends fewer slow requests. It waits for the started requests.
func repeat(ctx context.Context, l *latencies, do func(context.Context, int) error) {
	var mu sync.Mutex // guards l
	var all sync.WaitGroup
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		all.Go(func() {
			one, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
			defer cancel()
			begin := time.Now()
			err := do(one, i)
			mu.Lock()
			defer mu.Unlock()
			l.add(time.Since(begin), err)
		})
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	all.Wait()
}

// A state is the memory and goroutines of a server.
type state struct {
	memory     float64
	goroutines float64
}

// look reads the state. Requests for metrics are not queued.
func (w *world) look(ctx context.Context) (s state, err error) {
	if s.memory, err = w.kcp.Memory(); err != nil {
		return s, errors.Join(err, w.kcp.Ended())
	}
	c, err := child.NewClient(w.kcp.Metrics)
	if err != nil {
		return s, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	b, err := c.Call(ctx, http.MethodGet, "/metrics", "*/*", nil)
	if err != nil {
		return s, err
	}
	values, _ := child.ParseMetrics(b)
	s.goroutines = values["go_goroutines"]
	return s, nil
}

// watch samples the state of the server until ctx ends, and ends the storm if memory grows too
// much. The returned function returns the maximum.
func (w *world) watch(ctx context.Context, end func(), before state) func() (most state, early bool) {
	most := before
	early := false
	var both sync.WaitGroup
	both.Go(func() {
		for !early && child.Pause(ctx, 50*time.Millisecond) == nil {
			m, err := w.kcp.Memory()
			if err != nil {
				return // endure sees that the server ended
			}
			most.memory = max(most.memory, m)
			if m > float64(w.most) {
				early = true
				end()
			}
		}
	})
	goroutines := before.goroutines
	both.Go(func() {
		for child.Pause(ctx, time.Second) == nil {
			if s, err := w.look(ctx); err == nil {
				goroutines = max(goroutines, s.goroutines)
			}
		}
	})
	return func() (state, bool) {
		both.Wait()
		most.goroutines = goroutines
		return most, early
	}
}

const (
	moreMemory     = 128 << 20 // that a server may keep in addition to a quarter
	moreGoroutines = 200
)

// comeBack waits until memory and goroutines are about the same as before. It updates most with
// further growth.
func (w *world) comeBack(ctx context.Context, before state, most *state) (took time.Duration, last state, err error) {
	begin := time.Now()
	for time.Since(begin) < w.back {
		now, err := w.look(ctx)
		if err == nil {
			last = now
			most.memory, most.goroutines = max(most.memory, now.memory), max(most.goroutines, now.goroutines)
		} else if _, gone := w.kcp.Memory(); gone != nil {
			return 0, last, err
		}
		if err == nil && last.memory <= before.memory*1.25+moreMemory && last.goroutines <= before.goroutines+moreGoroutines {
			return time.Since(begin), last, nil
		}
		if err := child.Pause(ctx, time.Second); err != nil {
			return 0, last, err
		}
	}
	return -1, last, nil
}
