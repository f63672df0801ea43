package store

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/shrink"
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
	buckets shrink.Map[cluster.Name, *rate.Limiter]
	sweepAt int
}

func newBudgets() *budgets {
	return &budgets{sweepAt: 1024}
}

// spend takes n bytes from the budget of c, or answers 429.
func (b *budgets) spend(c cluster.Name, n int) error { return b.spendAt(time.Now(), c, n) }

func (b *budgets) spendAt(now time.Time, c cluster.Name, n int) error {
	if c.System() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	bucket, _ := b.buckets.Get(c)
	if bucket == nil {
		if b.buckets.Len() >= b.sweepAt {
			b.sweep(now)
		}
		bucket = rate.NewLimiter(writeRate, writeBurst)
		b.buckets.Put(c, bucket)
	}
	if bucket.AllowN(now, n) {
		return nil
	}
	return apierrors.NewTooManyRequests(fmt.Sprintf("logical cluster %s writes more than %d MiB a second; slow down, or write smaller objects", c, writeRate>>20), 1)
}

func (b *budgets) sweep(now time.Time) {
	b.buckets.DropFunc(func(_ cluster.Name, bucket *rate.Limiter) bool { return bucket.TokensAt(now) >= writeBurst })
	b.sweepAt = max(1024, 2*b.buckets.Len())
}

// drop forgets a cluster that is gone, and reports whether it was known.
func (b *budgets) drop(c cluster.Name) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buckets.Drop(c)
}
