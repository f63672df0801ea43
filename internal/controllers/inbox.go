package controllers

import (
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/keys"
)

var (
	namespaces      = keys.Resource{Root: keys.Native, Resource: "namespaces"}
	serviceAccounts = keys.Resource{Root: keys.Native, Resource: "serviceaccounts"}
	secrets         = keys.Resource{Root: keys.Native, Resource: "secrets"}
)

// maxWaiting limits the keys in an inbox while no loop runs.
const maxWaiting = 10000

// An inbox collects keys from a follower of the change feed for one loop. The follower embeds it,
// and defines Apply. It defines Reset and Done if it has state of its own.
type inbox struct {
	// all returns every key that may need work.
	all func() []control.Key

	mu      sync.Mutex
	wake    func(control.Key) // wakes the loop; nil while no loop runs
	waiting map[control.Key]struct{}
	lost    bool // keys were dropped
}

func newInbox(all func() []control.Key) *inbox {
	return &inbox{all: all, waiting: map[control.Key]struct{}{}}
}

// put wakes the loop with a key now or, if no loop runs, when one starts.
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

// putAll wakes the loop with every key that may need work.
func (b *inbox) putAll() {
	for _, k := range b.all() {
		b.put(k)
	}
}

// Reset implements [feed.Follower].
func (*inbox) Reset() {}

// Done implements [feed.Follower]. Every key may need work after a rebuild of the feed.
func (b *inbox) Done() { b.putAll() }

// full reports whether a follower with n keys of its own for the loop must drop some. While
// a loop runs there is no limit, because the loop removes them.
func (b *inbox) full(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wake == nil && n >= maxWaiting
}

// subscribe is [control.Source.Subscribe].
func (b *inbox) subscribe(wake func(control.Key)) (unsubscribe func()) {
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

// loopKeys converts the keys of stored objects to those of loops.
func loopKeys(stored []keys.Key) []control.Key {
	all := make([]control.Key, len(stored))
	for i, k := range stored {
		all[i] = keyOf(k)
	}
	return all
}

func keyOf(k keys.Key) control.Key {
	return control.Key{Cluster: k.Cluster, Namespace: k.Namespace, Name: k.Name}
}

// untilChange returns nil for an error that an object does not exist or has changed: the change
// wakes the loop. It returns other errors.
func untilChange(err error) error {
	return ignore(err, apierrors.IsNotFound, apierrors.IsConflict, storage.IsConflict)
}

// ignore returns err, or nil if err is of one of the kinds.
func ignore(err error, kinds ...func(error) bool) error {
	for _, is := range kinds {
		if is(err) {
			return nil
		}
	}
	return err
}
