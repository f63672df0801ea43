package watches

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/unforked/kcp/internal/storage/store"
)

// Watches are all watches of a store. Methods may be called concurrently.
type Watches struct {
	// BookmarkEvery is the interval of bookmarks of watches that follow the change feed. It may
	// change while there are none.
	BookmarkEvery time.Duration

	store    *store.Store
	history  *kubernetes.Client // reads the history of etcd
	resumeAt int64              // where the last process ended its watches; 0 if unknown

	// The final bookmarks, see End.
	ending  chan struct{} // closed when last is set
	last    atomic.Int64  // the revision that they reach
	pending atomic.Int64  // watches that asked for bookmarks
	ended   chan struct{} // gets a value when pending becomes 0

	closing   chan struct{} // closed by Close
	closeOnce sync.Once
	running   sync.WaitGroup
}

// New returns the watches of a store, whose feed has not started. They read the history of etcd
// with the client, which the caller closes. The caller calls Close before it closes the store.
func New(ctx context.Context, s *store.Store, history *kubernetes.Client) (*Watches, error) {
	resumeAt, err := s.Marked(ctx, resumeMark)
	if err != nil {
		return nil, err
	}
	s.Feed().Share(newReads)
	return &Watches{
		BookmarkEvery: BookmarkEvery,
		store:         s,
		history:       history,
		resumeAt:      resumeAt,
		ending:        make(chan struct{}),
		ended:         make(chan struct{}, 1),
		closing:       make(chan struct{}),
	}, nil
}

// Close stops all watches. Requests must have ended.
func (all *Watches) Close() {
	all.closeOnce.Do(func() { close(all.closing) })
	all.running.Wait()
}
