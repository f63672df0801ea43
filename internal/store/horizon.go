package store

import (
	"context"
	"sync"
)

// A horizon finds out how far etcd is, where others than this process write to it. One
// read answers all who ask while it waits for its turn, so that there is one in flight
// however many ask. It begins after they asked: whatever was acknowledged by any process
// before that is within the horizon.
type horizon struct {
	read func(context.Context) (int64, error)
	ctx  context.Context // of the reads, ended by stop
	end  context.CancelFunc

	mu      sync.Mutex
	next    *sighting // that has not begun; nil if nobody waits for one
	running bool
	readers sync.WaitGroup
}

type sighting struct {
	done chan struct{}
	rev  int64
	err  error
}

func newHorizon(read func(context.Context) (int64, error)) *horizon {
	ctx, end := context.WithCancel(context.Background())
	return &horizon{read: read, ctx: ctx, end: end}
}

// now returns the newest revision of etcd.
func (h *horizon) now(ctx context.Context) (int64, error) {
	h.mu.Lock()
	s := h.next
	if s == nil {
		s = &sighting{done: make(chan struct{})}
		h.next = s
	}
	if !h.running {
		h.running = true
		h.readers.Go(h.run)
	}
	h.mu.Unlock()
	select {
	case <-s.done:
		return s.rev, s.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// run reads for as long as anybody waits.
func (h *horizon) run() {
	for {
		h.mu.Lock()
		s := h.next
		if h.next = nil; s == nil {
			h.running = false
			h.mu.Unlock()
			return
		}
		h.mu.Unlock()
		s.rev, s.err = h.read(h.ctx)
		close(s.done)
	}
}

// stop returns when nothing is read any more.
func (h *horizon) stop() {
	h.end()
	h.readers.Wait()
}
