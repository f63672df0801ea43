// Package quota limits the bytes that each tenant may write and store, and counts objects for
// quotas and limits. It hides the accounting: which clusters belong to one tenant, and their
// sums.
package quota

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/memory/shrink"
)

// Limits of the bytes that a tenant writes. etcd keeps the history of all writes. Without
// these limits a tenant could fill it in minutes by rewriting large objects.
const (
	WriteRate  = 4 << 20   // bytes per second, sustained
	WriteBurst = 128 << 20 // bytes at once
)

const (
	// DefaultShare is the default part of the database for one tenant, in percent.
	DefaultShare = 25
	// changesShare is what updates may add to the share, in percent of it. Deletion of an
	// object with finalizers takes updates, which can make the object larger.
	changesShare = 10
	// leastShare is the minimal share.
	leastShare = 64 << 20 // bytes
)

// Tenants limits the writes and the stored bytes of tenants. Per tenant it keeps the sum of
// the stored bytes and, after recent writes, a rate limiter. Its methods can be called
// concurrently. Use [New] to create one.
type Tenants struct {
	// Counters count objects for quotas.
	Counters *Counters

	share int64 // percent of the database

	mu       sync.Mutex
	of       func(cluster.Name) cluster.Name
	now      *sums
	building *sums // between Reset and Swap, else nil
	stale    bool  // the tenants of all clusters must be determined again
	buckets  shrink.Map[cluster.Name, *rate.Limiter]
	sweepAt  int
	trees    trees
}

// New returns limits by which each tenant may store share percent of the database; 0 means
// [DefaultShare]. Each cluster is its own tenant until [Tenants.SetTenant] is called.
func New(share int) *Tenants {
	if share <= 0 {
		share = DefaultShare
	}
	return &Tenants{Counters: &Counters{}, share: int64(share), of: func(c cluster.Name) cluster.Name { return c }, now: newSums(), sweepAt: 1024}
}

// SetTenant sets the function that returns the tenant of a cluster. f must be fast; it is
// called with a lock held.
func (t *Tenants) SetTenant(f func(cluster.Name) cluster.Name) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of, t.stale = f, true
}

// A Write is a write of one object.
type Write struct {
	Cluster cluster.Name
	Bytes   int
	Creates bool // creates the object instead of updating it
	Clears  bool // belongs to a deletion, which the share does not limit
}

// Allow charges the write to its tenant. It returns a 403 Status if the tenant would exceed
// its share of the database, and a 429 Status if it exceeds the rate. database is the size
// of the database in bytes; 0 means unknown, and then the share does not apply.
func (t *Tenants) Allow(w Write, database int64) error { return t.AllowAt(time.Now(), w, database) }

// AllowAt is [Tenants.Allow] with the current time as a parameter.
func (t *Tenants) AllowAt(now time.Time, w Write, database int64) error {
	if w.Cluster.System() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	tenant := t.of(w.Cluster)
	if tenant != cluster.Root && database > 0 && !w.Clears {
		if err := t.hold(tenant, w, max(leastShare, database/100*t.share)); err != nil {
			return err
		}
	}
	return t.spend(now, tenant, w.Bytes)
}

// hold refuses a write beyond the share of a tenant. The caller holds the lock.
func (t *Tenants) hold(tenant cluster.Name, w Write, share int64) error {
	if t.stale {
		t.now, t.stale = t.now.resettled(t.of), false
	}
	t.now.move(w.Cluster, tenant)
	holds, _ := t.now.tenants.Get(tenant)
	most := share
	if !w.Creates {
		most += share / 100 * changesShare
	}
	if holds+int64(w.Bytes) <= most {
		return nil
	}
	text := fmt.Sprintf("logical cluster %s and all below it store %s, and the limit of one tenant is %s; delete objects there, or ask the operator for a larger --tenant-storage-percent than %d",
		tenant, mebibytes(holds), mebibytes(share), t.share)
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: text}}
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// spend charges n bytes to the rate of a tenant. The caller holds the lock.
func (t *Tenants) spend(now time.Time, tenant cluster.Name, n int) error {
	bucket, _ := t.buckets.Get(tenant)
	if bucket == nil {
		if t.buckets.Len() >= t.sweepAt {
			t.buckets.DropFunc(func(_ cluster.Name, b *rate.Limiter) bool { return b.TokensAt(now) >= WriteBurst })
			t.sweepAt = max(1024, 2*t.buckets.Len())
		}
		bucket = rate.NewLimiter(WriteRate, WriteBurst)
		t.buckets.Put(tenant, bucket)
	}
	if bucket.AllowN(now, n) {
		return nil
	}
	return apierrors.NewTooManyRequests(fmt.Sprintf("logical cluster %s and all below it write more than %d MiB a second; slow down, or write smaller objects", tenant, WriteRate>>20), 1)
}

// Drop deletes the rate limiter of tenant c after its deletion, and reports whether there
// was one.
func (t *Tenants) Drop(c cluster.Name) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buckets.Drop(c)
}

// Changed adds objects and bytes to what a cluster stores. The numbers can be negative.
func (t *Tenants) Changed(c cluster.Name, objects, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	to := t.now
	if t.building != nil {
		to = t.building
	}
	to.add(c, t.of(c), objects, bytes)
	t.trees.changed(c)
}

// Holds returns the stored bytes of a tenant.
func (t *Tenants) Holds(tenant cluster.Name) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stale {
		t.now, t.stale = t.now.resettled(t.of), false
	}
	n, _ := t.now.tenants.Get(tenant)
	return n
}

// Reset begins a new count of all stored bytes. Until [Tenants.Swap], Changed adds to the
// new count and the limits use the old one.
func (t *Tenants) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.building = newSums()
}

// Swap replaces the old count with the new one.
func (t *Tenants) Swap() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now, t.building, t.stale = t.building, nil, true
	t.trees.reset()
}
