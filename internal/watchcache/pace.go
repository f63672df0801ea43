package watchcache

import (
	"context"
	"sync"
)

// A Pace lets the reader of several watches ask how far each of them is. A watch with a pace
// delivers a bookmark as soon as it has delivered every change up to the revision that was asked
// for last.
type Pace struct {
	mu    sync.Mutex
	asked int64
	grown chan struct{} // closed when asked grows
}

// NewPace returns a pace for which nothing was asked.
func NewPace() *Pace { return &Pace{grown: make(chan struct{})} }

type paceKey struct{}

// WithPace returns a context in which watches within a [store.Scope] have a pace.
func WithPace(ctx context.Context, p *Pace) context.Context {
	return context.WithValue(ctx, paceKey{}, p)
}

func paceOf(ctx context.Context) *Pace {
	p, _ := ctx.Value(paceKey{}).(*Pace)
	return p
}

// Ask asks for bookmarks of a revision or of later ones.
func (p *Pace) Ask(revision int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if revision > p.asked {
		p.asked = revision
		close(p.grown)
		p.grown = make(chan struct{})
	}
}

// more returns the revision that was asked for, and a channel that is closed when that grows. The
// channel of a nil pace is nil.
func (p *Pace) more() (asked int64, grown <-chan struct{}) {
	if p == nil {
		return 0, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked, p.grown
}

// report delivers the bookmark that was asked for, and returns a channel that is closed when more
// is asked. It reports false at the end of the watch.
func (w *feedWatch) report() (more <-chan struct{}, ok bool) {
	asked, more := w.pace.more()
	return more, asked <= w.told || w.feed().WaitFor(w.ctx, asked) == nil && w.progress()
}
