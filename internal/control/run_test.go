package control

import (
	"context"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
)

func TestALoopWaitsForAllItsSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, read := newBell(), newBell(), newBell()
		var runs atomic.Int32
		count := func(context.Context, Key) error { runs.Add(1); return nil }
		start(t, Loop{Name: "l", Do: count, On: []Source{
			a.source(), {}, b.source(), {Ready: read.ready}, // also one that is always ready
		}})
		a.ring(key("a", "x"))
		b.ring(key("b", "x"))
		for _, s := range []*bell{b, read, a} {
			synctest.Wait()
			if runs.Load() != 0 {
				t.Fatalf("ran before all sources were ready")
			}
			close(s.ready)
		}
		synctest.Wait()
		if runs.Load() != 2 {
			t.Errorf("%d runs, want one for each key woken before", runs.Load())
		}
	})
}

func TestRunAllReturnsWhenAllWorkHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, never, release := readyBell(), newBell(), make(chan struct{})
		var working, told atomic.Int32
		do := func(ctx context.Context, _ Key) error {
			working.Add(1)
			defer working.Add(-1)
			<-ctx.Done()
			told.Add(1)
			<-release
			return ctx.Err()
		}
		log := &lines{}
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.New(log)))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			Runner{}.Run(ctx,
				Loop{Name: "a", On: []Source{b.source()}, Do: do},
				Loop{Name: "b", On: []Source{b.source()}, Do: do},
				Loop{Name: "unready", On: []Source{b.source(), never.source()}, Do: do})
		}()
		synctest.Wait()
		wakes := b.wakes[0]
		b.ring(key("a", "x"), key("b", "x"), key("c", "x"))
		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case <-ended:
			t.Fatal("returned while keys were worked on")
		default:
		}
		close(release)
		<-ended
		if working.Load() != 0 || told.Load() != 6 {
			t.Errorf("%d still working, %d were told to stop; want 0, 6", working.Load(), told.Load())
		}
		if b.gone != 3 || never.gone != 1 {
			t.Errorf("%d and %d subscriptions ended, want 3 and 1", b.gone, never.gone)
		}
		wakes(key("a", "y")) // late, and harmless
		synctest.Wait()
		if told.Load() != 6 {
			t.Error("a stopped loop was woken")
		}
		if len(log.logged) > 0 {
			t.Errorf("stopping was logged as failure: %q", log.logged)
		}
	})
}

func TestAnIdleLoopHasNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, late := readyBell(), newBell()
		var runs atomic.Int32
		loop := Loop{Name: "l", On: []Source{b.source(), late.source()}, Do: func(context.Context, Key) error { runs.Add(1); return nil }}
		ctx, cancel := context.WithCancel(t.Context())
		before := runtime.NumGoroutine()
		wait := Start(ctx, slices.Repeat([]Loop{loop}, 100)...)
		synctest.Wait()
		b.ring(key("a", "x"))
		close(late.ready)
		synctest.Wait()
		if now := runtime.NumGoroutine(); now > before+10 || runs.Load() != 100 { // others may come and go
			t.Errorf("%d goroutines with 100 idle loops, %d without; %d runs", now, before, runs.Load())
		}
		cancel()
		wait()
		if b.gone != 100 || late.gone != 100 {
			t.Errorf("%d and %d of 100 loops unsubscribed", b.gone, late.gone)
		}
	})
}

func TestStoppingDropsWhatRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := times(t, 0, func(int) error { return After(time.Hour) })
		<-time.After(2 * time.Hour)
		if len(calls) != 1 {
			t.Errorf("%d calls, want 1: none after the loop was stopped", len(calls))
		}
	})
}

func TestContextOfDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := readyBell()
		log := &lines{}
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.New(log)))
		defer cancel()
		go Runner{}.Run(ctx, Loop{Name: "l", On: []Source{b.source()}, Do: func(ctx context.Context, k Key) error {
			if c, ok := cluster.From(ctx); !ok || c != k.Cluster {
				t.Errorf("cluster %q in the context for %s", c, k)
			}
			klog.FromContext(ctx).Info("here")
			panic("bad object")
		}})
		synctest.Wait()
		b.ring(Key{Cluster: "a", Namespace: "ns", Name: "x"})
		synctest.Wait()
		log.want(t, "here", "loop", "l", "cluster", "a", "key", "ns/x")
		log.want(t, "loop panicked; will retry", "panic: bad object", "TestContextOfDo", "ns/x")
	})
}

func TestLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := readyBell()
		var runs atomic.Int32
		lose, regain := make(chan struct{}), make(chan struct{})
		r := Runner{Lead: func(ctx context.Context, run func(context.Context)) {
			term, end := context.WithCancel(ctx)
			go func() { <-lose; end() }()
			run(term)
			<-regain
			run(ctx)
		}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r.Run(ctx, Loop{Name: "l", On: []Source{b.source()}, Do: func(context.Context, Key) error { runs.Add(1); return nil }})
		}()
		for _, step := range []struct {
			do   func()
			want int32
		}{{func() {}, 1}, {func() { close(lose) }, 1}, {func() { close(regain) }, 2}} {
			step.do()
			synctest.Wait()
			b.ring(key("a", "x"))
			synctest.Wait()
			if runs.Load() != step.want {
				t.Errorf("%d runs, want %d", runs.Load(), step.want)
			}
		}
		cancel()
		<-ended
	})
}

func TestTenantsAndKeysCostNoGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := readyBell()
		var runs atomic.Int32
		start(t, Loop{Name: "l", On: []Source{b.source()}, Do: func(context.Context, Key) error {
			runs.Add(1)
			return After(time.Hour)
		}})
		before := runtime.NumGoroutine()
		for i := range 10_000 {
			b.ring(key("tenant-"+strconv.Itoa(i), "x"))
		}
		synctest.Wait()
		if after := runtime.NumGoroutine(); after > before+1 || runs.Load() != 10_000 {
			t.Errorf("%d goroutines more for 10,000 tenants, %d runs", after-before, runs.Load())
		}
	})
}
