package deletion

import (
	"sync"
	"time"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// alarms wakes the loop after changes in clusters whose deletion is blocked. It is a
// follower of the change feed.
type alarms struct {
	mu    sync.RWMutex
	wakes func(control.Key)
	of    map[cluster.Name]*alarm
}

type alarm struct {
	key   control.Key
	until time.Time // end of the rest
}

func newAlarms(f *feed.Feed) *alarms {
	a := &alarms{of: map[cluster.Name]*alarm{}}
	f.Follow(a)
	return a
}

func (a *alarms) start(wake func(control.Key)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wakes = wake
}

func (a *alarms) wake(k control.Key) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	a.wakes(k)
}

func (a *alarms) set(c cluster.Name, k control.Key) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.of[c] = &alarm{key: k}
}

func (a *alarms) clear(c cluster.Name) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.of, c)
}

func (a *alarms) rest(c cluster.Name, d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if it := a.of[c]; it != nil {
		it.until = time.Now().Add(d)
	}
}

// resting reports whether there is an alarm for c, and the remaining time of its rest.
func (a *alarms) resting(c cluster.Name) (set bool, rest time.Duration) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	it := a.of[c]
	if it == nil {
		return false, 0
	}
	return true, time.Until(it.until)
}

// Reset implements [feed.Follower].
func (a *alarms) Reset() {}

// Apply implements [feed.Follower].
func (a *alarms) Apply(e feed.Event) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if it := a.of[e.Key.Cluster]; it != nil && e.Key.Resource != tree.LogicalClusters() {
		a.wakes(it.key)
	}
}

// Done implements [feed.Follower].
func (a *alarms) Done() {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, it := range a.of {
		a.wakes(it.key)
	}
}
