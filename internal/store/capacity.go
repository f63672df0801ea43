package store

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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/unforked/kcp/internal/cluster"
)

const (
	// tenantsShare of the quota, in percent, is what clusters of tenants can fill:
	// the rest lets the server, and whoever deletes, go on working.
	tenantsShare = 80
	// changesShare of it is where tenants cannot change anything any more, and
	// deletionsShare where there is no room left for the marks of deletions either.
	changesShare   = 90
	deletionsShare = 95
	lookEvery      = 10 * time.Second

	// A spareRate-th of the quota is what tenants may change in a second above their share,
	// a spareBurst-th at once, and minSpareBurst in any case.
	spareRate     = 8 << 10
	spareBurst    = 2 << 10
	minSpareBurst = 64 << 10
)

// capacity knows how full the database is.
type capacity struct {
	used  func() int64 // bytes in use, history included
	quota atomic.Int64 // bytes; 0 if it is not known
	// full is true once etcd has raised the alarm: it takes no writes but deletions.
	full atomic.Bool
	// gone counts the keys that were deleted.
	gone atomic.Int64

	mu      sync.Mutex
	spare   *rate.Limiter // of what is changed above the share of tenants
	spareOf int64         // the quota that it is made for
}

func newCapacity(used func() int64, quota int64) *capacity {
	c := &capacity{used: used}
	c.quota.Store(quota)
	return c
}

func (c *capacity) above(percent int64) bool {
	quota := c.quota.Load()
	return quota > 0 && c.used() > quota/100*percent
}

// refuse returns the answer to a write of n bytes in a cluster when the share of tenants
// is used up. Deleting is never refused. What has finalizers, or something in it, is deleted
// by changing it first: so who deletes may change objects, and so may everybody, slowly,
// who may be about to take a finalizer off.
func (c *capacity) refuse(ctx context.Context, n cluster.Name, bytes int, creates bool) error {
	switch {
	case n.System():
		return nil
	case c.full.Load():
		return noSpace("full")
	case !c.above(tenantsShare), !creates && clearsUp(ctx) && !c.above(deletionsShare):
		return nil
	case creates || c.above(changesShare):
		return noSpace(fmt.Sprintf("%d%% full", c.used()*100/c.quota.Load()))
	case !c.spend(bytes):
		return apierrors.NewTooManyRequests("the database of the server is nearly full, and objects are changed slowly for that; delete what is not needed, or try again", 1)
	}
	return nil
}

// spend takes bytes from what all tenants together may change while little space is left.
func (c *capacity) spend(bytes int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if quota := c.quota.Load(); c.spareOf != quota {
		c.spareOf = quota
		c.spare = rate.NewLimiter(rate.Limit(quota/spareRate), int(max(quota/spareBurst, minSpareBurst)))
	}
	return c.spare.AllowN(time.Now(), bytes)
}

// clearsUp reports whether a write is a part of a deletion, or the server's own.
func clearsUp(ctx context.Context) bool {
	info, ok := request.RequestInfoFrom(ctx)
	if !ok || info.Verb == "delete" || info.Verb == "deletecollection" {
		return true
	}
	u, ok := request.UserFrom(ctx)
	return ok && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}

// noSpace is the answer to a write that the database has no room for.
func noSpace(how string) error {
	return apierrors.NewGenericServerResponse(http.StatusInsufficientStorage, "write", schema.GroupResource{}, "",
		fmt.Sprintf("the database of the server is %s; delete what is not needed, in this or other logical clusters", how), 0, true)
}
