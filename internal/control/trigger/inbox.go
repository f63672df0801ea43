package trigger

import (
	"sync"

	"github.com/unforked/kcp/internal/control"
)

// MaxWaiting limits the keys in an [Inbox] while no loop runs.
const MaxWaiting = 10000

// An Inbox collects keys from a follower of the change feed for one loop. The follower embeds it,
// and defines Apply. It defines Reset and Done if it has state of its own.
type Inbox struct {
	// all returns every key that may need work.
	all func() []control.Key

	mu      sync.Mutex
	wake    func(control.Key) // wakes the loop; nil while no loop runs
	waiting map[control.Key]struct{}
	lost    bool // keys were dropped
}

// New returns an empty inbox. all returns every key that may need work.
func New(all func() []control.Key) *Inbox {
	return &Inbox{all: all, waiting: map[control.Key]struct{}{}}
}

// Put wakes the loop with a key now or, if no loop runs, when one starts.
func (b *Inbox) Put(k control.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.wake != nil:
		b.wake(k)
	case len(b.waiting) < MaxWaiting:
		b.waiting[k] = struct{}{}
	default:
		b.lost, b.waiting = true, map[control.Key]struct{}{}
	}
}

// PutAll wakes the loop with every key that may need work.
func (b *Inbox) PutAll() {
	for _, k := range b.all() {
		b.Put(k)
	}
}

// Reset implements [feed.Follower].
func (*Inbox) Reset() {}

// Done implements [feed.Follower]. Every key may need work after a rebuild of the feed.
func (b *Inbox) Done() { b.PutAll() }

// Full reports whether a follower with n keys of its own for the loop must drop some. While
// a loop runs there is no limit, because the loop removes them.
func (b *Inbox) Full(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wake == nil && n >= MaxWaiting
}

// Subscribe is [control.Source.Subscribe].
func (b *Inbox) Subscribe(wake func(control.Key)) (unsubscribe func()) {
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
		// Keys in the queue of the loop are lost.
		b.wake, b.lost = nil, true
	}
}
