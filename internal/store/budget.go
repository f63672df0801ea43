package store

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp/internal/cluster"
)

// How much a cluster may write. History, not content, fills etcd: without this a
// tenant that rewrites one large object without pause would fill it in minutes,
// for everybody.
const (
	writeRate  = 2 << 20  // bytes a second, sustained
	writeBurst = 64 << 20 // bytes at once
)

// budgets limits the bytes that each cluster writes. A cluster that has not
// written lately costs nothing: its bucket is full, and dropped.
type budgets struct {
	mu      sync.Mutex
	buckets map[cluster.Name]*rate.Limiter
	sweepAt int
}

func newBudgets() *budgets {
	return &budgets{buckets: map[cluster.Name]*rate.Limiter{}, sweepAt: 1024}
}

// spend takes n bytes from the budget of c, or answers 429.
func (b *budgets) spend(c cluster.Name, n int) error { return b.spendAt(time.Now(), c, n) }

func (b *budgets) spendAt(now time.Time, c cluster.Name, n int) error {
	if c.System() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	bucket := b.buckets[c]
	if bucket == nil {
		if len(b.buckets) >= b.sweepAt {
			b.sweep(now)
		}
		bucket = rate.NewLimiter(writeRate, writeBurst)
		b.buckets[c] = bucket
	}
	if bucket.AllowN(now, n) {
		return nil
	}
	return apierrors.NewTooManyRequests(fmt.Sprintf("logical cluster %s writes more than %d MiB a second; slow down, or write smaller objects", c, writeRate>>20), 1)
}

func (b *budgets) sweep(now time.Time) {
	for c, bucket := range b.buckets {
		if bucket.TokensAt(now) >= writeBurst {
			delete(b.buckets, c)
		}
	}
	b.sweepAt = max(1024, 2*len(b.buckets))
}

// drop forgets a cluster that is gone, and reports whether it was known.
func (b *budgets) drop(c cluster.Name) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, had := b.buckets[c]
	delete(b.buckets, c)
	return had
}
