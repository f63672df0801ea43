package cacher

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// A skipClock is the clock of the watch caches. It can be put forward, so that the caches
// do at once what they would do later: above all send bookmarks.
type skipClock struct {
	clock.RealClock
	ahead atomic.Int64 // of the time, in nanoseconds

	mu     sync.Mutex
	timers map[*skipTimer]struct{}
}

func newSkipClock() *skipClock { return &skipClock{timers: map[*skipTimer]struct{}{}} }

// Now implements [clock.PassiveClock].
func (c *skipClock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// Since implements [clock.PassiveClock].
func (c *skipClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// NewTimer implements [clock.Clock].
func (c *skipClock) NewTimer(d time.Duration) clock.Timer {
	t := &skipTimer{clock: c, fired: make(chan time.Time, 1)}
	t.inner = time.AfterFunc(d, t.fire)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timers[t] = struct{}{}
	return t
}

// skip puts the clock forward. All timers fire.
func (c *skipClock) skip(d time.Duration) {
	c.ahead.Add(int64(d))
	c.mu.Lock()
	defer c.mu.Unlock()
	for t := range c.timers {
		t.fire()
	}
}

// A skipTimer fires after its duration, or when its clock is put forward.
type skipTimer struct {
	clock *skipClock
	inner *time.Timer
	fired chan time.Time
}

func (t *skipTimer) fire() {
	select {
	case t.fired <- t.clock.Now():
	default: // it has fired already
	}
}

// C implements [clock.Timer].
func (t *skipTimer) C() <-chan time.Time { return t.fired }

// Stop implements [clock.Timer].
func (t *skipTimer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	delete(t.clock.timers, t)
	return t.inner.Stop()
}

// Reset implements [clock.Timer].
func (t *skipTimer) Reset(d time.Duration) bool { return t.inner.Reset(d) }
