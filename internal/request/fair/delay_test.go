package fair

import (
	"context"
	"math"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"testing"
	"time"
)

// On a busy server all requests take long. That alone does not make a tenant slow.
func TestWaitsForProcessorsAreNotComputing(t *testing.T) {
	t.Parallel()
	s := newScheduler(4, 3, 10)
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

// The mean is that of the waits since the earlier measurement.
func TestMeanSince(t *testing.T) {
	h := &metrics.Float64Histogram{Counts: []uint64{3, 5, 7}, Buckets: []float64{math.Inf(-1), 0.001, 0.004, math.Inf(1)}}
	for _, c := range []struct {
		before []uint64
		want   time.Duration
	}{
		{nil, 33 * time.Millisecond / 15},
		{[]uint64{3, 5, 7}, 0},
		{[]uint64{3, 5, 6}, 4 * time.Millisecond},
		{[]uint64{3, 4, 6}, 2500 * time.Microsecond},
	} {
		if got := meanSince(c.before, h); got != c.want {
			t.Errorf("since %v: %v, want %v", c.before, got, c.want)
		}
	}
}

// The runtime has the histogram of waits, and counts the goroutines that run.
func TestTheRuntimeMeasuresDelays(t *testing.T) {
	d := newDelays()
	d.recent()
	before := slices.Clone(d.counts)
	d.at = time.Time{}
	var all sync.WaitGroup
	for range 1000 {
		all.Go(runtime.Gosched)
	}
	all.Wait()
	d.recent()
	if len(before) == 0 || slices.Equal(before, d.counts) {
		t.Errorf("%d counts, and none has grown", len(before))
	}
}
