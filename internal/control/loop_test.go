package control

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unforked/kcp/internal/cluster"
)

// A bell is a source that wakes loops when a test says so.
type bell struct {
	ready chan struct{}

	mu    sync.Mutex
	wakes map[int]func(Key)
	next  int
	gone  int // loops that have unsubscribed
}

func newBell() *bell { return &bell{ready: make(chan struct{}), wakes: map[int]func(Key){}} }

func readyBell() *bell {
	b := newBell()
	close(b.ready)
	return b
}

func (b *bell) source() Source {
	return Source{Ready: b.ready, Subscribe: func(wake func(Key)) func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		id := b.next
		b.next++
		b.wakes[id] = wake
		return func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			delete(b.wakes, id)
			b.gone++
		}
	}}
}

func (b *bell) ring(keys ...Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, wake := range b.wakes {
		for _, k := range keys {
			wake(k)
		}
	}
}

// start runs loops until the test ends or stop is called.
func start(t *testing.T, loops ...Loop) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Runner{}.Run(ctx, loops...)
	}()
	stop = func() { cancel(); <-ended }
	t.Cleanup(stop)
	synctest.Wait()
	return stop
}

func TestANoisyTenantDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBell()
		var order []Key
		start(t, Loop{Name: "l", On: []Source{b.source()}, Workers: 1, Do: func(_ context.Context, k Key) error {
			order = append(order, k)
			if len(order) == 100 {
				b.ring(key("quiet", "a"), key("calm", "a"), key("calm", "b"))
			}
			return nil
		}})
		for i := range 10_000 {
			b.ring(key("noisy", strconv.Itoa(i)))
		}
		close(b.ready)
		synctest.Wait()
		if len(order) != 10_003 {
			t.Fatalf("%d keys were worked on, want 10003", len(order))
		}
		if i := slices.Index(order, key("quiet", "a")); i > 101 {
			t.Errorf("%d keys of others came before the only one of a tenant", i-100)
		}
		if i := slices.Index(order, key("calm", "b")); i > 105 {
			t.Errorf("%d keys of others came before the second of a tenant", i-100)
		}
	})
}

// A tenant with many clusters has the share of one. Its tenant is looked up when the sources are
// ready, and without the locks that sources hold when they wake the loop.
func TestManyClustersAreOneTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, release := newBell(), make(chan struct{})
		var known atomic.Bool
		r := Runner{Tenant: func(c cluster.Name) cluster.Name {
			b.mu.Lock()
			defer b.mu.Unlock()
			if known.Load() && c != "other" {
				return "owner"
			}
			return c
		}}
		var stuck atomic.Int32
		var order []cluster.Name // of the free worker
		l := Loop{Name: "l", On: []Source{b.source()}, Do: func(_ context.Context, k Key) error {
			if k.Name == "stuck" {
				stuck.Add(1)
				<-release
				return nil
			}
			order = append(order, k.Cluster)
			return nil
		}}
		ctx, cancel := context.WithCancel(t.Context())
		var ended sync.WaitGroup
		ended.Go(func() { r.Run(ctx, l) })
		defer ended.Wait()
		defer cancel()
		synctest.Wait()
		for i := range 100 {
			b.ring(key(strconv.Itoa(i), "stuck"))
		}
		known.Store(true)
		close(b.ready)
		synctest.Wait()
		if got := stuck.Load(); got != 3 {
			t.Errorf("%d workers are at the keys of one owner, want 3", got)
		}
		b.ring(key("other", "a"))
		synctest.Wait()
		if !slices.Equal(order, []cluster.Name{"other"}) {
			t.Errorf("the free worker served %v", order)
		}
		close(release)
		synctest.Wait()
		if got := stuck.Load(); got != 100 {
			t.Errorf("%d of 100 keys were worked on", got)
		}
	})
}

func TestATenantNeverHoldsAllWorkers(t *testing.T) {
	for workers, share := range map[int]int{0: 3, 1: 1, 2: 1, 8: 7} {
		synctest.Test(t, func(t *testing.T) {
			b, release := readyBell(), make(chan struct{})
			var stuck, others atomic.Int32
			start(t, Loop{Name: "l", On: []Source{b.source()}, Workers: workers, Do: func(_ context.Context, k Key) error {
				if k.Cluster == "slow" {
					stuck.Add(1)
					<-release
				} else {
					others.Add(1)
				}
				return nil
			}})
			for i := range 20 {
				b.ring(key("slow", strconv.Itoa(i)))
			}
			synctest.Wait()
			if got := int(stuck.Load()); got != share {
				t.Errorf("%d workers: %d are at one tenant's keys, want %d", workers, got, share)
			}
			for i := range 20 {
				b.ring(key("other", strconv.Itoa(i)))
			}
			synctest.Wait()
			if got := others.Load(); got != 20 && workers != 1 {
				t.Errorf("%d workers: %d of 20 keys of another tenant were worked on", workers, got)
			}
			close(release)
			synctest.Wait()
			if stuck.Load() != 20 || others.Load() != 20 {
				t.Errorf("%d workers: %d and %d of 20 keys were worked on", workers, stuck.Load(), others.Load())
			}
		})
	}
}

// TestSlowKeysLeaveTheirWorkers shows that tenants whose keys hang hold up the others for some seconds
// only, whatever the number of workers, and that the number of such keys has a limit.
func TestSlowKeysLeaveTheirWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow = 8
		b, release := readyBell(), make(chan struct{})
		var stuck, others atomic.Int32
		start(t, Loop{Name: "l", On: []Source{b.source()}, Workers: 2, Slow: slow, Do: func(_ context.Context, k Key) error {
			if k.Cluster != "other" {
				stuck.Add(1)
				<-release
			} else {
				others.Add(1)
			}
			return nil
		}})
		hang := func(from, to int) {
			for i := from; i < to; i++ {
				b.ring(key("slow"+strconv.Itoa(i), "a"), key("slow"+strconv.Itoa(i), "b"))
			}
			synctest.Wait()
		}
		hang(0, 2)
		b.ring(key("other", "a"))
		synctest.Wait()
		if stuck.Load() != 2 || others.Load() != 0 {
			t.Fatalf("at first %d keys are stuck, and %d are done", stuck.Load(), others.Load())
		}
		<-time.After(slowAfter)
		synctest.Wait()
		if stuck.Load() != 2 || others.Load() != 1 {
			t.Errorf("after some time %d keys are stuck, and %d are done: one of each tenant may be stuck", stuck.Load(), others.Load())
		}
		hang(2, 2*slow)
		<-time.After(2 * slow * slowAfter)
		synctest.Wait()
		if got := stuck.Load(); got != slow+2 {
			t.Errorf("%d keys are stuck, want %d and those of two workers", got, slow)
		}
		release <- struct{}{} // a worker that has waited for long is free again
		synctest.Wait()
		if got := stuck.Load(); got != slow+3 {
			t.Errorf("after one has ended, %d keys have begun, want %d", got, slow+3)
		}
		close(release)
		b.ring(key("other", "b"))
		synctest.Wait()
		if stuck.Load() != 4*slow || others.Load() != 2 {
			t.Errorf("in the end %d and %d keys were worked on", stuck.Load(), others.Load())
		}
	})
}

func TestAKeyIsWorkedOnOnceAtATimeAndAgainIfWokenMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, step := readyBell(), make(chan struct{})
		var at, most, runs atomic.Int32
		start(t, Loop{Name: "l", On: []Source{b.source()}, Do: func(context.Context, Key) error {
			most.Store(max(most.Load(), at.Add(1)))
			defer at.Add(-1)
			runs.Add(1)
			<-step
			return nil
		}})
		k := key("a", "x")
		b.ring(k)
		synctest.Wait()
		b.ring(k, k, k)
		synctest.Wait()
		if runs.Load() != 1 {
			t.Fatalf("%d runs at once", runs.Load())
		}
		step <- struct{}{}
		synctest.Wait()
		if runs.Load() != 2 {
			t.Fatalf("%d runs after being woken while working, want 2", runs.Load())
		}
		step <- struct{}{}
		synctest.Wait()
		if runs.Load() != 2 || most.Load() != 1 {
			t.Errorf("%d runs, %d at once; want 2, 1", runs.Load(), most.Load())
		}
	})
}

// times runs a loop over one key and returns when Do was called, since the start.
func times(t *testing.T, until time.Duration, do func(run int) error) []time.Duration {
	b, began := readyBell(), time.Now()
	var calls []time.Duration
	stop := start(t, Loop{Name: "l", On: []Source{b.source()}, Do: func(context.Context, Key) error {
		calls = append(calls, time.Since(began))
		return do(len(calls))
	}})
	b.ring(key("a", "x"))
	<-time.After(until)
	stop()
	return calls
}

func TestFailuresAreTriedAgainWithBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := times(t, time.Hour, func(int) error { return errors.New("no") })
		wait := firstRetry
		for i := 1; i < len(calls); i++ {
			if got := calls[i] - calls[i-1]; got != wait {
				t.Fatalf("try %d came after %v, want %v", i, got, wait)
			}
			wait = min(2*wait, lastRetry)
		}
		if len(calls) < 20 || wait != lastRetry {
			t.Errorf("%d tries in an hour, the last after %v", len(calls), wait)
		}
	})
}

func TestBackOffNeverOverflows(t *testing.T) {
	for tries := range 1000 {
		if d := backOff(tries); d < firstRetry || d > lastRetry || tries > 0 && d < backOff(tries-1) {
			t.Fatalf("back-off after %d failures is %v", tries, d)
		}
	}
}

func TestSuccessEndsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Fails three times, wants to be called again, fails once more, is done.
		calls := times(t, time.Hour, func(run int) error {
			switch run {
			case 4:
				return fmt.Errorf("waiting for a name: %w", After(time.Minute))
			case 6:
				return nil
			default:
				return errors.New("no")
			}
		})
		ms := time.Millisecond
		want := []time.Duration{0, 5 * ms, 15 * ms, 35 * ms, 35*ms + time.Minute, 40*ms + time.Minute}
		if !slices.Equal(calls, want) {
			t.Errorf("called at %v, want %v", calls, want)
		}
	})
}

func TestSuccessEndsBackOffOfAKeyThatIsWokenMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, began := readyBell(), time.Now()
		var calls []time.Duration
		start(t, Loop{Name: "l", On: []Source{b.source()}, Do: func(_ context.Context, k Key) error {
			calls = append(calls, time.Since(began))
			switch len(calls) {
			case 3:
				b.ring(k)
				return nil
			case 5:
				return nil
			}
			return errors.New("no")
		}})
		b.ring(key("a", "x"))
		<-time.After(time.Hour)
		synctest.Wait()
		ms := time.Millisecond
		if want := []time.Duration{0, 5 * ms, 15 * ms, 15 * ms, 20 * ms}; !slices.Equal(calls, want) {
			t.Errorf("called at %v, want %v", calls, want)
		}
	})
}

func TestAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := times(t, 3500*time.Millisecond, func(int) error { return After(time.Second) })
		if want := []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second}; !slices.Equal(calls, want) {
			t.Errorf("called at %v, want %v", calls, want)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		calls := times(t, time.Second, func(run int) error {
			if run == 3 {
				return nil
			}
			return After(-time.Second)
		})
		if want := []time.Duration{0, 0, 0}; !slices.Equal(calls, want) {
			t.Errorf("called at %v, want %v", calls, want)
		}
	})
}

func TestWakingEndsARest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, began := readyBell(), time.Now()
		calls := map[string][]time.Duration{}
		var mu sync.Mutex
		start(t, Loop{Name: "l", On: []Source{b.source()}, Do: func(_ context.Context, k Key) error {
			mu.Lock()
			defer mu.Unlock()
			calls[k.Name] = append(calls[k.Name], time.Since(began))
			if len(calls[k.Name]) > 2 {
				return nil
			}
			return After(map[string]time.Duration{"early": time.Minute, "late": time.Hour}[k.Name])
		}})
		b.ring(key("a", "late"))
		synctest.Wait() // so that the timer is set to later first
		b.ring(key("a", "early"))
		<-time.After(time.Second)
		b.ring(key("a", "early"))
		<-time.After(2 * time.Hour)
		mu.Lock()
		defer mu.Unlock()
		if want := []time.Duration{0, time.Second, time.Second + time.Minute}; !slices.Equal(calls["early"], want) {
			t.Errorf("woken key was called at %v, want %v", calls["early"], want)
		}
		if want := []time.Duration{0, time.Hour, 2 * time.Hour}; !slices.Equal(calls["late"], want) {
			t.Errorf("other key was called at %v, want %v", calls["late"], want)
		}
	})
}

func TestAPanicIsAnErrorOfItsKey(t *testing.T) {
	for name, fail := range map[string]func(){
		"panic":      func() { panic("bad object") },
		"nil deref":  func() { _ = *(*int)(nil) },
		"end thread": func() { runtime.Goexit() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := readyBell()
				var bad, good atomic.Int32
				start(t, Loop{Name: "l", On: []Source{b.source()}, Workers: 2, Do: func(_ context.Context, k Key) error {
					if k.Cluster == "bad" {
						if bad.Add(1) < 4 {
							fail()
						}
						return nil
					}
					good.Add(1)
					return nil
				}})
				for i := range 10 {
					b.ring(key("bad", strconv.Itoa(i)), key("good", strconv.Itoa(i)))
				}
				<-time.After(time.Second)
				if good.Load() != 10 {
					t.Errorf("%d of 10 keys of other tenants were worked on", good.Load())
				}
				if want := int32(13); name != "end thread" && bad.Load() != want {
					t.Errorf("%d runs over 10 keys of which 3 failed once, want %d", bad.Load(), want)
				}
			})
		})
	}
}

func TestKeysHaveDifferentStrings(t *testing.T) {
	for k, want := range map[Key]string{
		{"a1", "ns", "x"}:         "a1|ns/x",
		{"a1", "", "x"}:           "a1|x",
		{"system:admin", "", "x"}: "system:admin|x",
		{"a1", "", "b|x"}:         "a1|b|x",
	} {
		if k.String() != want {
			t.Errorf("%#v is %q, want %q", k, k, want)
		}
	}
}
