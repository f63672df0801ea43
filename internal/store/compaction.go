package store

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/klog/v2"
)

const (
	// pressedAt of the quota, in percent, history is kept for a shorter time.
	pressedAt      = 50
	pressedHistory = time.Minute
	// manyGone deleted keys are not kept for as long as other history, once few more
	// are deleted: of each, etcd keeps a place in memory. Caches that are replaced
	// because of the same deletion need history of two sweeps and a bit.
	manyGone    = 10_000
	goneHistory = 3 * time.Minute
	fewGone     = 50 // times fewer since
)

// A compactor keeps the history of an etcd in this process short. It only decides.
type compactor struct {
	kept    time.Duration // for which history is kept; 0 for as long as there is room
	pressed func() bool   // whether there is little room

	points []point // the oldest first
	last   point   // that was compacted to, at the time when that was
}

// A point is a revision, when it was the newest, and how many keys were deleted by then.
type point struct {
	at   time.Time
	rev  int64
	gone int64
}

// add takes in how it is now.
func (c *compactor) add(p point) { c.points = append(c.points, p) }

// due returns the revision to compact to, 0 for none.
func (c *compactor) due(now time.Time, gone int64) int64 {
	switch {
	case c.pressed():
		return c.take(now, pressedHistory)
	case c.kept == 0:
		c.points = nil
		return 0
	}
	if p := c.older(now, goneHistory); p != nil && c.kept > goneHistory {
		if many := p.gone - c.last.gone; many >= manyGone && gone-p.gone <= many/fewGone {
			return c.take(now, goneHistory)
		}
	}
	if now.Sub(c.last.at) < c.kept {
		return 0 // compacting reads all of the index
	}
	return c.take(now, c.kept)
}

// older returns the newest of the points that are so old, or nil.
func (c *compactor) older(now time.Time, age time.Duration) *point {
	var found *point
	for i := range c.points {
		if now.Sub(c.points[i].at) >= age {
			found = &c.points[i]
		}
	}
	return found
}

// take returns the revision of the newest point that is so old, and forgets that and
// those before. It returns 0 if nothing changed since the last.
func (c *compactor) take(now time.Time, age time.Duration) int64 {
	p := c.older(now, age)
	if p == nil {
		return 0
	}
	rev, last := p.rev, c.last.rev
	c.last = point{now, rev, p.gone}
	for len(c.points) > 0 && c.points[0].rev <= rev {
		c.points = c.points[1:]
	}
	if rev == last {
		return 0
	}
	return rev
}

// run compacts until ctx ends. Clients in this process have no endpoint, so that the
// compactor of Kubernetes does not do it.
func (c *compactor) run(ctx context.Context, client *clientv3.Client, gone func() int64) {
	every := lookEvery
	if c.kept > 0 {
		every = min(every, max(c.kept/10, time.Millisecond))
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	c.last.at = time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			resp, err := client.Get(ctx, "\x00", clientv3.WithSerializable(), clientv3.WithCountOnly())
			if err != nil {
				continue // it is closing
			}
			c.add(point{now, resp.Header.Revision, gone()})
			rev := c.due(now, gone())
			if rev == 0 {
				continue
			}
			if _, err := client.Compact(ctx, rev); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "History not compacted", "revision", rev)
			}
		}
	}
}
