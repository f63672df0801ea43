package fair

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"
)

// On a busy server all requests take long. That alone does not make a tenant slow.
func TestWaitsForProcessorsAreNotComputing(t *testing.T) {
	t.Parallel()
	s := newScheduler(Light, 4, 3, 10)
	s.delay = func() time.Duration { return 10 * time.Millisecond }
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // a request that does not get a seat at once gives up
	for used, want := range map[time.Duration]int{long + switches*10*time.Millisecond: 3, long + switches*11*time.Millisecond: 1} {
		for range 2 { // one of them stays
			if err := s.acquire(ctx, "tenant", time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		s.release("tenant", used)
		got := 1
		for range 2 {
			if s.acquire(ctx, "tenant", time.Hour) == nil {
				got++
			}
		}
		if got != want {
			t.Errorf("after a request of %v: %d at the same time, want %d", used, got, want)
		}
		for range got {
			s.release("tenant", 0)
		}
	}
}

// The measured delay is about what goroutines wait for when there are many of them.
func TestDelays(t *testing.T) {
	d := newDelays()
	d.recent()
	d.at = time.Time{}
	var all sync.WaitGroup
	stop := time.Now().Add(2 * delayPeriod)
	for range 8 * runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for time.Now().Before(stop) {
				runtime.Gosched()
				for began := time.Now(); time.Since(began) < time.Millisecond; {
				}
			}
		})
	}
	all.Wait()
	if got := d.recent(); got < time.Millisecond || got > time.Second {
		t.Errorf("goroutines wait for %v, want about 7ms", got)
	}
}
