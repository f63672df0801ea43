package server

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

var (
	errQueueFull = errors.New("the queue is full")
	errTooLong   = errors.New("its turn did not come in time")
)

// turns lets a number of requests of each kind go on at a time, such as those of one
// cluster, and the others wait in the order that they came. It knows only kinds that
// have requests now.
type turns struct {
	each  int // that go on
	queue int // that wait

	mu sync.Mutex
	by map[string]*line
}

// A line is the requests of one kind.
type line struct {
	running int
	waiting []chan struct{} // closed when their turn is
}

func newTurns(each, queue int) *turns {
	return &turns{each: each, queue: queue, by: map[string]*line{}}
}

// take waits for the turn of a request, which give ends.
func (t *turns) take(ctx context.Context, kind string, patience time.Duration) error {
	t.mu.Lock()
	l := t.line(kind)
	if l.running < t.each {
		l.running++
		t.mu.Unlock()
		return nil
	}
	if len(l.waiting) >= t.queue {
		t.mu.Unlock()
		return errQueueFull
	}
	turn := make(chan struct{})
	l.waiting = append(l.waiting, turn)
	t.mu.Unlock()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case <-turn:
		return nil
	case <-timeout.C:
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(l.waiting, turn)
	if i < 0 {
		return nil // its turn came just now
	}
	l.waiting = slices.Delete(l.waiting, i, i+1)
	return errTooLong
}

// force is take for a request that others may wait for: it does not wait itself.
func (t *turns) force(kind string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.line(kind).running++
}

// line returns that of a kind. Called locked.
func (t *turns) line(kind string) *line {
	l := t.by[kind]
	if l == nil {
		l = &line{}
		t.by[kind] = l
	}
	return l
}

// give ends a turn, and hands it on.
func (t *turns) give(kind string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.by[kind]
	l.running--
	for len(l.waiting) > 0 && l.running < t.each {
		l.running++
		close(l.waiting[0])
		l.waiting = l.waiting[1:]
	}
	if l.running == 0 && len(l.waiting) == 0 {
		delete(t.by, kind)
	}
}

// A turn is that of one request, which can lay it down and take it up again.
type turn struct {
	of   *turns
	kind string

	mu    sync.Mutex
	held  bool
	ended bool
}

// begin waits for the turn. It does nothing once that has ended.
func (t *turn) begin(ctx context.Context, patience time.Duration) error {
	if err := t.of.take(ctx, t.kind, patience); err != nil {
		return err
	}
	t.have()
	return nil
}

// move lays down the turn, and waits for one among others.
func (t *turn) move(ctx context.Context, to *turns, patience time.Duration) error {
	t.rest()
	t.mu.Lock()
	t.of = to
	t.mu.Unlock()
	return t.begin(ctx, patience)
}

// force takes up the turn without waiting.
func (t *turn) force() {
	t.of.force(t.kind)
	t.have()
}

func (t *turn) have() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held || t.ended {
		t.of.give(t.kind)
		return
	}
	t.held = true
}

// rest lays down the turn, and reports whether it had it.
func (t *turn) rest() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.held {
		return false
	}
	t.held = false
	t.of.give(t.kind)
	return true
}

// end lays down the turn for good.
func (t *turn) end() {
	t.rest()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
}
