package serve

import (
	"container/list"
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// recent builds values when they are first asked for, each once however many
// ask at the same time, and keeps those that were used last. Nothing runs
// between requests: what has been idle too long goes when something else is
// asked for.
type recent[K comparable, V any] struct {
	limit int
	idle  time.Duration
	now   func() time.Time

	mu      sync.Mutex
	entries map[K]*list.Element // guarded by mu
	order   list.List           // of *entry[K, V], the last used first; guarded by mu
}

type entry[K comparable, V any] struct {
	key   K
	used  time.Time     // guarded by recent.mu
	done  chan struct{} // closed once value and err are set
	value V
	err   error
}

// newRecent returns a cache of at most limit values, each dropped after it was
// not used for idle.
func newRecent[K comparable, V any](limit int, idle time.Duration) *recent[K, V] {
	return &recent[K, V]{limit: limit, idle: idle, now: time.Now, entries: map[K]*list.Element{}}
}

// get returns the value of key. The first to ask builds it, without any lock
// held; others wait for that, as long as their context lasts. A failure is
// given to everybody who waited and then forgotten.
func (c *recent[K, V]) get(ctx context.Context, key K, build func() (V, error)) (V, error) {
	e, first := c.claim(key)
	if !first {
		select {
		case <-e.done:
			return e.value, e.err
		case <-ctx.Done():
			var none V
			return none, ctx.Err()
		}
	}
	e.build(ctx, build)
	if e.err != nil {
		c.forget(e)
	}
	return e.value, e.err
}

// claim returns the entry of key, and whether the caller has to build it.
func (c *recent[K, V]) claim(key K) (*entry[K, V], bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	at, found := c.entries[key]
	if found {
		c.order.MoveToFront(at)
	} else {
		at = c.order.PushFront(&entry[K, V]{key: key, done: make(chan struct{})})
		c.entries[key] = at
	}
	e := at.Value.(*entry[K, V])
	e.used = now
	for last := c.order.Back(); last != at; last = c.order.Back() {
		old := last.Value.(*entry[K, V])
		if c.order.Len() <= c.limit && now.Sub(old.used) < c.idle {
			break
		}
		c.order.Remove(last)
		delete(c.entries, old.key)
	}
	return e, !found
}

// forget removes e unless another entry took its place.
func (c *recent[K, V]) forget(e *entry[K, V]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, found := c.entries[e.key]; found && at.Value == any(e) {
		c.order.Remove(at)
		delete(c.entries, e.key)
	}
}

// build fills e. A panic in what one tenant defined is an error for those who
// asked for it; without that, all others who wait would do so for ever.
func (e *entry[K, V]) build(ctx context.Context, build func() (V, error)) {
	defer close(e.done)
	defer func() {
		if p := recover(); p != nil {
			e.err = fmt.Errorf("panic: %v", p)
			klog.FromContext(ctx).Error(e.err, "Building what a cluster serves panicked", "stack", string(debug.Stack()))
		}
	}()
	e.value, e.err = build()
}
