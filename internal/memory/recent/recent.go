// Package recent caches values that can be built again. It hides when a value is built, and when it
// is forgotten.
package recent

import (
	"container/list"
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// A Cache is an LRU cache that builds its values. Concurrent requests for a missing key
// share one build. Calls of [Cache.Get] also evict idle values; no timer runs between them.
type Cache[K comparable, V any] struct {
	limit int
	idle  time.Duration
	now   func() time.Time

	mu      sync.Mutex
	entries map[K]*list.Element // guarded by mu
	order   list.List           // of *entry[K, V], most recently used first; guarded by mu
}

type entry[K comparable, V any] struct {
	key   K
	used  time.Time     // guarded by Cache.mu
	done  chan struct{} // closed once value and err are set
	value V
	err   error
}

// New returns a cache of at most limit values. It evicts a value that was not used
// for idle.
func New[K comparable, V any](limit int, idle time.Duration) *Cache[K, V] {
	return &Cache[K, V]{limit: limit, idle: idle, now: time.Now, entries: map[K]*list.Element{}}
}

// Get returns the value of key. The first caller builds it, without a lock held; other
// callers wait for the result until their context ends. All waiting callers get the
// error of a failed build, which is not cached.
func (c *Cache[K, V]) Get(ctx context.Context, key K, build func() (V, error)) (V, error) {
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

// claim returns the entry of key, and whether the caller must build it. It evicts old
// entries.
func (c *Cache[K, V]) claim(key K) (*entry[K, V], bool) {
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

// Len returns the number of values, with those that are being built.
func (c *Cache[K, V]) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.order.Len()
}

// forget removes e, unless another entry has replaced it.
func (c *Cache[K, V]) forget(e *entry[K, V]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, found := c.entries[e.key]; found && at.Value == any(e) {
		c.order.Remove(at)
		delete(c.entries, e.key)
	}
}

// build sets the value and the error of e. It turns a panic, which a definition of a
// tenant may cause, into an error, so that waiting callers return.
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
