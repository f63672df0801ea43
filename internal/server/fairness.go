package server

import (
	"context"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/serve"
)

// How much of the server one cluster may take at a time. The limits for all of them
// together are several times as high, so that one cluster cannot use them up.
const (
	clusterRequests = 100             // answered at once
	clusterQueue    = 400             // waiting for that
	clusterWait     = 5 * time.Second // at most
	clusterWatches  = 5_000

	maxReads  = 800
	maxWrites = 400
)

// fairness keeps one cluster's requests from crowding out those of others. It knows
// only clusters that have requests now.
type fairness struct {
	mu    sync.Mutex
	lanes map[cluster.Name]*lane
}

// A lane is what a cluster has going on.
type lane struct {
	running, watching int
	waiting           []chan struct{} // in the order they came; closed when their turn is
}

func newFairness() *fairness { return &fairness{lanes: map[cluster.Name]*lane{}} }

// limit lets requests pass as their cluster's share allows. The system's own always
// pass.
func (f *fairness) limit(next http.Handler, longRunning func(*http.Request, *request.RequestInfo) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c, ok := cluster.From(req.Context())
		info, known := request.RequestInfoFrom(req.Context())
		if u, _ := request.UserFrom(req.Context()); !ok || !known || u != nil && auth.IsPrivileged(u) {
			next.ServeHTTP(w, req)
			return
		}
		leave, err := f.enter(req.Context(), c, longRunning(req, info))
		if err != nil {
			w.Header().Set("Retry-After", "1")
			refuse(w, req, err)
			return
		}
		defer func() { serve.WhenServed(req.Context(), leave) }()
		next.ServeHTTP(w, req)
	})
}

// enter waits for a place in the lane of cluster c, which leave gives back.
func (f *fairness) enter(ctx context.Context, c cluster.Name, watch bool) (leave func(), err error) {
	f.mu.Lock()
	l := f.lanes[c]
	if l == nil {
		l = &lane{}
		f.lanes[c] = l
	}
	if watch {
		defer f.mu.Unlock()
		if l.watching >= clusterWatches {
			return nil, apierrors.NewTooManyRequests("this logical cluster has too many watches open; close some", 1)
		}
		l.watching++
		return func() { f.leave(c, func(l *lane) { l.watching-- }) }, nil
	}
	leave = func() { f.leave(c, func(l *lane) { l.running-- }) }
	if l.running < clusterRequests {
		l.running++
		f.mu.Unlock()
		return leave, nil
	}
	if len(l.waiting) >= clusterQueue {
		f.mu.Unlock()
		return nil, apierrors.NewTooManyRequests("this logical cluster has too many requests waiting; send fewer at once", 1)
	}
	turn := make(chan struct{})
	l.waiting = append(l.waiting, turn)
	f.mu.Unlock()
	return f.wait(ctx, c, turn, leave)
}

// wait waits for the turn of a request, which then holds a place.
func (f *fairness) wait(ctx context.Context, c cluster.Name, turn chan struct{}, leave func()) (func(), error) {
	timeout := time.NewTimer(clusterWait)
	defer timeout.Stop()
	select {
	case <-turn:
		return leave, nil
	case <-timeout.C:
	case <-ctx.Done():
	}
	f.leave(c, func(l *lane) {
		for i, t := range l.waiting {
			if t == turn {
				l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
				return
			}
		}
		l.running-- // its turn came just now
	})
	return nil, apierrors.NewTooManyRequests("this logical cluster has too many requests at once; send fewer", 1)
}

// leave changes the lane of cluster c, and hands on the places that are free then.
func (f *fairness) leave(c cluster.Name, change func(*lane)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.lanes[c]
	change(l)
	for len(l.waiting) > 0 && l.running < clusterRequests {
		l.running++
		close(l.waiting[0])
		l.waiting = l.waiting[1:]
	}
	if l.running == 0 && l.watching == 0 && len(l.waiting) == 0 {
		delete(f.lanes, c)
	}
}
