// Package space measures how full the database and its disk are, and refuses writes before etcd does.
package space

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/unforked/kcp/internal/cluster"
)

// MeasureEvery is the time between two measurements of a database.
const MeasureEvery = 10 * time.Second

const (
	// tenantsShare is the percentage of the quota that tenants can fill. The rest is for the
	// server itself and for deletions.
	tenantsShare = 80
	// Above changesShare percent of the quota, tenants cannot change objects. Above
	// deletionsShare percent, tenants' requests to delete cannot change objects either, for
	// example to mark them as deleted.
	changesShare   = 90
	deletionsShare = 95

	// Above their share, tenants may together change quota/spareRate bytes per second, with a
	// burst of quota/spareBurst bytes, and at least minSpareBurst.
	spareRate     = 8 << 10
	spareBurst    = 2 << 10
	minSpareBurst = 64 << 10
)

// A Capacity measures how full the database is, and refuses writes when its space runs out.
type Capacity struct {
	used  func() int64 // bytes in use, history included
	quota atomic.Int64 // bytes; 0 if it is not known
	// full is true while the etcd alarm for lack of space is active: then etcd accepts only
	// deletions.
	full atomic.Bool
	disk atomic.Int32 // a diskLevel

	gauges *gauges

	mu      sync.Mutex
	spare   *rate.Limiter // limits changes above the tenants' share
	spareOf int64         // the quota that spare was created for
}

// New returns the capacity of a database with the given quota in bytes, 0 if it is
// unknown. used returns the bytes in use.
func New(used func() int64, quota int64) *Capacity {
	c := &Capacity{used: used, gauges: newGauges()}
	c.quota.Store(quota)
	return c
}

// Used returns the bytes in use, history included.
func (c *Capacity) Used() int64 { return c.used() }

// Quota returns the maximum size of the database in bytes; 0 if it is unknown.
func (c *Capacity) Quota() int64 { return c.quota.Load() }

// Above reports whether more than a percentage of the quota is in use.
func (c *Capacity) Above(percent int64) bool {
	quota := c.quota.Load()
	return quota > 0 && c.used() > quota/100*percent
}

// Refuse returns the error for a write of the given size in cluster n, or nil if there is
// space. Deletions do not pass through it. Namespaces and objects with finalizers must change
// before they can be deleted: above the tenants' share, requests that delete may still change
// objects. Other requests may change them slowly, because they may remove a finalizer.
func (c *Capacity) Refuse(ctx context.Context, n cluster.Name, bytes int, creates bool) error {
	disk := diskLevel(c.disk.Load())
	switch {
	case n.System():
		return nil
	case c.full.Load():
		return Full()
	case disk == diskFull:
		return noDisk()
	case !c.Above(tenantsShare) && disk == diskSpacious, !creates && ClearsUp(ctx) && !c.Above(deletionsShare):
		return nil
	case creates && disk == diskLow:
		return noDisk()
	case creates || c.Above(changesShare):
		return noSpace(fmt.Sprintf("%d%% full", c.used()*100/c.quota.Load()))
	case !c.spend(bytes):
		return apierrors.NewTooManyRequests("the database of the server is nearly full, so the rate of changes is limited; delete objects that are not needed, or try again", 1)
	}
	return nil
}

// spend takes bytes from the budget that all tenants share for changes above their share of
// the quota.
func (c *Capacity) spend(bytes int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if quota := c.quota.Load(); c.spareOf != quota {
		c.spareOf = quota
		c.spare = rate.NewLimiter(rate.Limit(quota/spareRate), int(max(quota/spareBurst, minSpareBurst)))
	}
	return c.spare.AllowN(time.Now(), bytes)
}

// ClearsUp reports whether a write is part of a deletion, or comes from the server itself.
func ClearsUp(ctx context.Context) bool {
	info, ok := request.RequestInfoFrom(ctx)
	if !ok || info.Verb == "delete" || info.Verb == "deletecollection" {
		return true
	}
	u, ok := request.UserFrom(ctx)
	return ok && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}

// SetQuota sets the maximum size of the database in bytes.
func (c *Capacity) SetQuota(bytes int64) { c.quota.Store(bytes) }

// SetFull records whether etcd has its alarm for lack of space, and reports whether that has changed.
func (c *Capacity) SetFull(full bool) (changed bool) { return c.full.Swap(full) != full }

// Full returns the error for a write while etcd has its alarm for lack of space.
func Full() error { return noSpace("full") }

// NoDisk returns the error for a write while the disk has no space for any, or nil.
func (c *Capacity) NoDisk() error {
	if diskLevel(c.disk.Load()) == diskFull {
		return noDisk()
	}
	return nil
}

// noSpace returns the error for a write when the database is full.
func noSpace(how string) error {
	return insufficientStorage(fmt.Sprintf("the database of the server is %s; delete objects that are not needed, in this or other logical clusters", how))
}

// noDisk returns the error for a write when the disk of the database is full.
func noDisk() error {
	return insufficientStorage("the disk of the server is full; try again when its operator has freed some space")
}

// reasonInsufficientStorage is the reason of a 507 response. Kubernetes defines none.
const reasonInsufficientStorage metav1.StatusReason = "InsufficientStorage"

func insufficientStorage(why string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage, Reason: reasonInsufficientStorage, Message: why,
	}}
}

// IsInsufficient reports whether err is the 507 of a full database or disk.
func IsInsufficient(err error) bool {
	return apierrors.ReasonForError(err) == reasonInsufficientStorage
}
