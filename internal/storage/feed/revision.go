package feed

import (
	"context"
	"sync"
	"time"
)

const (
	// hedgeAfter is the delay after which a read of the current revision is repeated on
	// another etcd server, and maxHedges limits the reads in flight.
	hedgeAfter = 100 * time.Millisecond
	maxHedges  = 3
)

// A RevisionReader reads the current revision of etcd, to which other processes write too.
// One read answers all callers that wait, so that the number of reads does not depend on
// the number of requests. A read begins after all its callers have called: the revision
// includes every write that any process acknowledged before.
type RevisionReader struct {
	read func(context.Context) (int64, error)
	ctx  context.Context // of the reads, ended by Stop
	end  context.CancelFunc

	mu      sync.Mutex
	next    *revisionRead // that has not begun; nil if no caller waits for one
	running bool
	readers sync.WaitGroup
}

// A revisionRead is one read and its result, which is set when done is closed.
type revisionRead struct {
	done  chan struct{}
	began time.Time
	rev   int64
	err   error
}

// NewRevisionReader returns a reader that calls read, which asks a server of etcd.
func NewRevisionReader(read func(context.Context) (int64, error)) *RevisionReader {
	ctx, end := context.WithCancel(context.Background())
	return &RevisionReader{read: read, ctx: ctx, end: end}
}

// Read returns the current revision of etcd, and when the read of it began.
func (r *RevisionReader) Read(ctx context.Context) (rev int64, began time.Time, err error) {
	r.mu.Lock()
	n := r.next
	if n == nil {
		n = &revisionRead{done: make(chan struct{})}
		r.next = n
	}
	if !r.running {
		r.running = true
		r.readers.Go(r.run)
	}
	r.mu.Unlock()
	select {
	case <-n.done:
		return n.rev, n.began, n.err
	case <-ctx.Done():
		return 0, time.Time{}, ctx.Err()
	}
}

// run reads while callers wait.
func (r *RevisionReader) run() {
	for {
		r.mu.Lock()
		n := r.next
		if r.next = nil; n == nil {
			r.running = false
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		n.began = time.Now()
		n.rev, n.err = r.hedged()
		close(n.done)
	}
}

// hedged reads, and repeats the read on other servers while none answers: a server that
// hangs must not delay every request.
func (r *RevisionReader) hedged() (int64, error) {
	type answer struct {
		rev int64
		err error
	}
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	answers := make(chan answer, maxHedges)
	ask := func() {
		r.readers.Go(func() {
			rev, err := r.read(ctx)
			answers <- answer{rev, err}
		})
	}
	ask()
	timer := time.NewTicker(hedgeAfter)
	defer timer.Stop()
	for asked, failed := 1, 0; ; {
		select {
		case a := <-answers:
			if failed++; a.err == nil || failed == asked {
				return a.rev, a.err
			}
		case <-timer.C:
			if asked < maxHedges {
				asked++
				ask()
			}
		}
	}
}

// Stop cancels all reads, and returns once they have ended.
func (r *RevisionReader) Stop() {
	r.end()
	r.readers.Wait()
}
