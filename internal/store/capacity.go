package store

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
)

const (
	// tenantsShare of the quota, in percent, is what clusters of tenants can fill:
	// the rest lets the server, and whoever deletes, go on working.
	tenantsShare = 80
	// pressedAt of the quota, in percent, history is kept for a shorter time.
	pressedAt      = 50
	pressedHistory = time.Minute
	lookEvery      = 10 * time.Second
)

// capacity knows how full the database is.
type capacity struct {
	used  func() int64 // bytes in use, history included
	quota atomic.Int64 // bytes; 0 if it is not known
	// full is true once etcd has raised the alarm: it takes no writes but deletions.
	full atomic.Bool
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

// refuse returns the answer to a write of cluster n when the share of tenants is
// used up. Deleting is never refused.
func (c *capacity) refuse(n cluster.Name) error {
	switch {
	case n.System():
		return nil
	case c.full.Load():
		return noSpace("full")
	case c.above(tenantsShare):
		return noSpace(fmt.Sprintf("%d%% full", c.used()*100/c.quota.Load()))
	}
	return nil
}

// noSpace is the answer to a write that the database has no room for.
func noSpace(how string) error {
	return apierrors.NewGenericServerResponse(http.StatusInsufficientStorage, "write", schema.GroupResource{}, "",
		fmt.Sprintf("the database of the server is %s; delete what is not needed, in this or other logical clusters", how), 0, true)
}

// A point is a revision and when it was the newest.
type point struct {
	at  time.Time
	rev int64
}

// due returns the revision to compact to, 0 for none: the newest that is older than
// history may be, and those of the points that are still of use.
func due(points []point, now time.Time) (rev int64, rest []point) {
	rest = points
	for len(rest) > 0 && now.Sub(rest[0].at) >= pressedHistory {
		rev, rest = rest[0].rev, rest[1:]
	}
	return rev, rest
}

// keepCompact compacts history by growth, where compacting it by time alone would
// let the database fill up, until ctx ends.
func (c *capacity) keepCompact(ctx context.Context, client *clientv3.Client, wg *sync.WaitGroup) {
	wg.Go(func() {
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		var points []point
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-tick.C:
				if !c.above(pressedAt) {
					points = nil
					continue
				}
				var rev int64
				if rev, points = due(points, now); rev > 0 {
					if _, err := client.Compact(ctx, rev); err != nil && ctx.Err() == nil {
						klog.FromContext(ctx).Error(err, "History not compacted", "revision", rev)
					}
				}
				if resp, err := client.Get(ctx, "\x00", clientv3.WithSerializable()); err == nil {
					points = append(points, point{now, resp.Header.Revision})
				}
			}
		}
	})
}
