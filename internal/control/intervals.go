package control

import (
	"sync"
	"time"

	"github.com/unforked/kcp/internal/memory/shrink"
)

// sweepFrom is the number of keys in [Intervals] from which those whose interval has ended are
// removed.
const sweepFrom = 1024

// Intervals limit how often a loop works on each key. A loop asks Wait first. If that is zero, it
// does the work and calls Begin. The zero value is ready to use. All methods are safe for concurrent
// use.
type Intervals struct {
	mu      sync.Mutex
	ends    shrink.Map[Key, time.Time] // of keys whose interval has not ended, and of some others
	sweepAt int                        // number of keys at which those whose interval has ended are removed
}

// Wait returns how long the interval of a key still lasts, zero if it has none.
func (i *Intervals) Wait(k Key, now time.Time) time.Duration {
	i.mu.Lock()
	defer i.mu.Unlock()
	end, ok := i.ends.Get(k)
	if !ok {
		return 0
	}
	return max(0, end.Sub(now))
}

// Begin begins an interval of a key, which replaces the last one.
func (i *Intervals) Begin(k Key, now time.Time, every time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ends.Len() >= max(sweepFrom, i.sweepAt) {
		i.ends.DropFunc(func(_ Key, end time.Time) bool { return !end.After(now) })
		i.sweepAt = 2 * i.ends.Len() // so that a sweep costs little per key
	}
	i.ends.Put(k, now.Add(every))
}
