package store

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// A hastyClock is the clock of the watch caches. It can be put forward, which has
// them do at once what they would do later: above all send bookmarks.
type hastyClock struct {
	clock.RealClock
	ahead atomic.Int64 // of the time, in nanoseconds

	mu     sync.Mutex
	timers map[*hastyTimer]struct{}
}

func newHastyClock() *hastyClock { return &hastyClock{timers: map[*hastyTimer]struct{}{}} }

// Now implements [clock.PassiveClock].
func (c *hastyClock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// Since implements [clock.PassiveClock].
func (c *hastyClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// NewTimer implements [clock.Clock].
func (c *hastyClock) NewTimer(d time.Duration) clock.Timer {
	t := &hastyTimer{clock: c, fired: make(chan time.Time, 1)}
	t.inner = time.AfterFunc(d, t.fire)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timers[t] = struct{}{}
	return t
}

// skip puts the clock forward. All timers fire.
func (c *hastyClock) skip(d time.Duration) {
	c.ahead.Add(int64(d))
	c.mu.Lock()
	defer c.mu.Unlock()
	for t := range c.timers {
		t.fire()
	}
}

// A hastyTimer fires when its time has come, or its clock is put forward.
type hastyTimer struct {
	clock *hastyClock
	inner *time.Timer
	fired chan time.Time
}

func (t *hastyTimer) fire() {
	select {
	case t.fired <- t.clock.Now():
	default: // it has fired already
	}
}

// C implements [clock.Timer].
func (t *hastyTimer) C() <-chan time.Time { return t.fired }

// Stop implements [clock.Timer].
func (t *hastyTimer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	delete(t.clock.timers, t)
	return t.inner.Stop()
}

// Reset implements [clock.Timer].
func (t *hastyTimer) Reset(d time.Duration) bool { return t.inner.Reset(d) }
