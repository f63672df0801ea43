package server

import (
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp/internal/cluster"
)

// How much memory lists of custom resources may take at a time, in bytes by an estimate.
// What is stored in a few MB can take a GB when it is decoded.
const (
	requestLoad = 4 << 20  // that nobody asks about
	clusterLoad = 1 << 30  // of the requests of one cluster
	serverLoad  = 3 << 30  // of all
	reserveLoad = 64 << 20 // of one cluster, whatever others have
)

// loads is how much memory requests take. It knows only clusters that have requests now
// which take much.
type loads struct {
	mu  sync.Mutex
	all int64
	of  map[cluster.Name]int64
}

func newLoads() *loads { return &loads{of: map[cluster.Name]int64{}} }

// request returns what a request in a cluster calls when it is about to take more memory,
// and what is called when it has ended.
func (l *loads) request(c cluster.Name) (grow func(int64) error, end func()) {
	var held, counted int64 // of the request
	return func(bytes int64) error {
			l.mu.Lock()
			defer l.mu.Unlock()
			more := max(0, held+bytes-requestLoad) - counted
			if err := l.check(c, more, counted); err != nil {
				return err
			}
			held, counted = held+bytes, counted+more
			l.add(c, more)
			return nil
		}, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.add(c, -counted)
			held, counted = 0, 0
		}
}

// check refuses a request that has some bytes counted already and is about to take more.
// Called locked.
func (l *loads) check(c cluster.Name, more, counted int64) error {
	now := l.of[c] + more
	switch {
	case more <= 0 || now <= reserveLoad:
		return nil
	case counted+more > clusterLoad:
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("decoded, the list would take more than %d MiB; list it in pages, with limit", clusterLoad>>20))
	case now > clusterLoad:
		return apierrors.NewTooManyRequests("the lists of this logical cluster take too much memory at once; list fewer at a time, or in pages, with limit", 1)
	case l.all+more > serverLoad:
		return apierrors.NewTooManyRequests("the lists of all logical clusters take too much memory at once; try again, or list in pages, with limit", 1)
	}
	return nil
}

// add is called locked.
func (l *loads) add(c cluster.Name, bytes int64) {
	l.all += bytes
	if l.of[c] += bytes; l.of[c] == 0 {
		delete(l.of, c)
	}
}
