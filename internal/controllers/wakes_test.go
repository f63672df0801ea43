package controllers

import (
	"slices"
	"sync"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
)

// wakes are the keys that an inbox wakes a loop with.
type wakes struct {
	mu   sync.Mutex
	keys map[control.Key]struct{}
}

func wakesOf(i *trigger.Inbox) *wakes {
	w := &wakes{keys: map[control.Key]struct{}{}}
	i.Subscribe(func(k control.Key) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.keys[k] = struct{}{}
	})
	return w
}

// take returns the keys since the last call.
func (w *wakes) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for k := range w.keys {
		all = append(all, k.String())
	}
	clear(w.keys)
	slices.Sort(all)
	return all
}
