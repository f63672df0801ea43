package watches

import (
	"context"
	"sync"
)

// ProgressRequests let the reader of several watches request the progress of all of them. Each
// watch delivers a bookmark as soon as it has delivered every change up to the revision that was
// requested last.
type ProgressRequests struct {
	mu    sync.Mutex
	asked int64
	grown chan struct{} // closed when asked grows
}

// NewProgressRequests returns ProgressRequests without a request.
func NewProgressRequests() *ProgressRequests { return &ProgressRequests{grown: make(chan struct{})} }

type progressRequestsKey struct{}

// WithProgressRequests returns a context in which watches within a [registry.Scope] answer progress
// requests.
func WithProgressRequests(ctx context.Context, p *ProgressRequests) context.Context {
	return context.WithValue(ctx, progressRequestsKey{}, p)
}

func progressRequestsOf(ctx context.Context) *ProgressRequests {
	p, _ := ctx.Value(progressRequestsKey{}).(*ProgressRequests)
	return p
}

// Ask requests bookmarks of a revision or of later ones.
func (p *ProgressRequests) Ask(revision int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if revision > p.asked {
		p.asked = revision
		close(p.grown)
		p.grown = make(chan struct{})
	}
}

// more returns the revision that was requested last, and a channel that is closed when a later one
// is requested. The channel of nil is nil.
func (p *ProgressRequests) more() (asked int64, grown <-chan struct{}) {
	if p == nil {
		return 0, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked, p.grown
}

// report delivers the requested bookmark, and returns a channel that is closed when a later one is
// requested. It reports false at the end of the watch.
func (w *feedWatch) report() (more <-chan struct{}, ok bool) {
	asked, more := w.requests.more()
	return more, asked <= w.bookmarked || w.feed().WaitFor(w.ctx, asked) == nil && w.progress()
}
