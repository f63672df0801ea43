package autoscale

import (
	"sync"
	"time"

	"github.com/unforked/kcp"
)

// turns decide when the objects of a loop are evaluated: each once in a period, and some of a workspace at a time.
// A key that waits costs nothing: it is woken when another one of the workspace has been evaluated.
type turns struct {
	period time.Duration
	most   int // evaluations of one workspace at the same time
	wake   func(kcp.Key)

	mu      sync.Mutex
	last    map[kcp.Key]time.Time                    // the last evaluation of each; guarded by mu
	count   map[kcp.Key]int                          // the keys in last, by namespace; guarded by mu
	running map[kcp.ClusterName]int                  // guarded by mu
	waiting map[kcp.ClusterName]map[kcp.Key]struct{} // guarded by mu
}

func newTurns(period time.Duration, most int) *turns {
	return &turns{period: period, most: most, wake: func(kcp.Key) {}, last: map[kcp.Key]time.Time{}, count: map[kcp.Key]int{},
		running: map[kcp.ClusterName]int{}, waiting: map[kcp.ClusterName]map[kcp.Key]struct{}{}}
}

// source tells the turns how to wake the loop.
func (t *turns) source() kcp.Source {
	return kcp.Source{Subscribe: func(wake func(kcp.Key)) func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.wake = wake
		return nil
	}}
}

// enter begins an evaluation. If it may not begin, leave is nil: the key is due again after left, or, if that is zero,
// when it is woken.
func (t *turns) enter(key kcp.Key, now time.Time) (left time.Duration, leave func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, known := t.last[key]
	if left := t.period - now.Sub(at); known && left > 0 {
		return left, nil
	}
	of := key.Cluster
	if t.running[of] >= t.most {
		if t.waiting[of] == nil {
			t.waiting[of] = map[kcp.Key]struct{}{}
		}
		t.waiting[of][key] = struct{}{}
		return 0, nil
	}
	if !known {
		t.count[namespaceOf(key)]++
	}
	t.last[key] = now
	t.running[of]++
	return 0, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.running[of]--; t.running[of] == 0 {
			delete(t.running, of)
		}
	}
}

// next wakes a key of a workspace that waits, if it may begin. It is called after each turn, also after one that
// evaluated nothing.
func (t *turns) next(of kcp.ClusterName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running[of] >= t.most {
		return
	}
	for key := range t.waiting[of] {
		if delete(t.waiting[of], key); len(t.waiting[of]) == 0 {
			delete(t.waiting, of)
		}
		t.wake(key)
		return
	}
}

// counted returns the number of objects of a namespace that had a turn.
func (t *turns) counted(in kcp.Key) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count[namespaceOf(in)]
}

// drop forgets the object at key. It reports whether it was ever evaluated.
func (t *turns) drop(key kcp.Key) (was bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, was = t.last[key]; was {
		delete(t.last, key)
		if in := namespaceOf(key); t.count[in] > 1 {
			t.count[in]--
		} else {
			delete(t.count, in)
		}
	}
	return was
}
