package controllers

import (
	"sync"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/store"
)

var (
	namespaces      = store.Resource{Root: store.Native, Resource: "namespaces"}
	serviceAccounts = store.Resource{Root: store.Native, Resource: "serviceaccounts"}
	secrets         = store.Resource{Root: store.Native, Resource: "secrets"}
)

// maxWaiting bounds the keys that an inbox holds while no loop runs.
const maxWaiting = 10000

// An inbox collects the keys that a follower of the spine finds, for the one loop
// that works on them.
type inbox struct {
	// all returns every key that may need work, for a loop that begins when some
	// were not held.
	all func() []control.Key

	mu      sync.Mutex
	wake    func(control.Key) // of the loop, nil while none runs
	waiting map[control.Key]struct{}
	lost    bool // keys were not held
}

func newInbox(all func() []control.Key) *inbox {
	return &inbox{all: all, waiting: map[control.Key]struct{}{}}
}

// put wakes the loop with a key, as soon as it runs.
func (b *inbox) put(k control.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.wake != nil:
		b.wake(k)
	case len(b.waiting) < maxWaiting:
		b.waiting[k] = struct{}{}
	default:
		b.lost, b.waiting = true, map[control.Key]struct{}{}
	}
}

// full reports whether n keys, kept beside those in the inbox for the loop that takes
// them up, are too many: while no loop runs nobody takes up any.
func (b *inbox) full(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wake == nil && n >= maxWaiting
}

// source wakes the loop with what is put.
func (b *inbox) source(ready <-chan struct{}) control.Source {
	return control.Source{Ready: ready, Subscribe: func(wake func(control.Key)) (unsubscribe func()) {
		b.mu.Lock()
		waiting, lost := b.waiting, b.lost
		b.wake, b.waiting, b.lost = wake, map[control.Key]struct{}{}, false
		b.mu.Unlock()
		for k := range waiting {
			wake(k)
		}
		if lost {
			for _, k := range b.all() {
				wake(k)
			}
		}
		return func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			// What was in the queue of the loop is not done.
			b.wake, b.lost = nil, true
		}
	}}
}

// keys returns the keys of stored objects as loops have them.
func keys(stored []store.Key) []control.Key {
	all := make([]control.Key, len(stored))
	for i, k := range stored {
		all[i] = keyOf(k)
	}
	return all
}

func keyOf(k store.Key) control.Key {
	return control.Key{Cluster: k.Cluster, Namespace: k.Namespace, Name: k.Name}
}
