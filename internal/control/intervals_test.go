package control

import (
	"fmt"
	"testing"
	"time"
)

// Each key waits for the end of its own interval, however many keys there are.
func TestIntervals(t *testing.T) {
	var i Intervals
	now := time.Now()
	slow := Key{Cluster: "c", Name: "slow"}
	if got := i.Wait(slow, now); got != 0 {
		t.Errorf("waits %v before its first interval", got)
	}
	i.Begin(slow, now, time.Hour)
	for n := range 10 * sweepFrom {
		now = now.Add(time.Millisecond)
		i.Begin(Key{Cluster: "c", Name: fmt.Sprint(n)}, now, time.Second)
	}
	if got, want := i.Wait(slow, now), time.Hour-10*sweepFrom*time.Millisecond; got != want {
		t.Errorf("waits %v, want %v", got, want)
	}
	last := Key{Cluster: "c", Name: fmt.Sprint(10*sweepFrom - 1)}
	if got := i.Wait(last, now.Add(400*time.Millisecond)); got != 600*time.Millisecond {
		t.Errorf("waits %v, want 600ms", got)
	}
	if got := i.Wait(last, now.Add(time.Second)); got != 0 {
		t.Errorf("waits %v after its interval", got)
	}
	i.Begin(slow, now, time.Minute)
	if got := i.Wait(slow, now); got != time.Minute {
		t.Errorf("waits %v in its new interval", got)
	}
}

// Keys whose interval has ended use no memory for long.
func TestIntervalsAreForgotten(t *testing.T) {
	var i Intervals
	now := time.Now()
	for n := range 10 * sweepFrom { // 2000 intervals last at a time
		now = now.Add(time.Millisecond)
		i.Begin(Key{Cluster: "c", Name: fmt.Sprint(n)}, now, 2*time.Second)
	}
	if n := i.ends.Len(); n > 4000 {
		t.Errorf("remembers %d keys", n)
	}
	now = now.Add(time.Hour)
	for n := range 4000 {
		i.Begin(Key{Cluster: "c", Name: fmt.Sprint("later", n)}, now, 0)
	}
	if n := i.ends.Len(); n > sweepFrom+1 {
		t.Errorf("remembers %d keys after all intervals have ended", n)
	}
}
