// Package history compacts the history of etcd: by age, after many deletions, and when space is short.
package history

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/storage/etcd/space"
)

// PressedAt is the use of the quota, in percent, above which history is kept for a minute only.
const PressedAt = 50

const (
	pressedHistory = time.Minute
	// After manyDeleted deletions, history is kept for deletedHistory only, once the rate of
	// deletions has dropped: etcd keeps an index entry in memory for each deleted key. Caches
	// that are replaced after the same deletions need a little more than two of their sweeps.
	manyDeleted    = 10_000
	deletedHistory = 3 * time.Minute
	fewDeleted     = 50 // there must be this many times fewer deletions in deletedHistory than before
)

// A Compactor compacts the history of an etcd in this process.
type Compactor struct {
	// Kept is how long history is kept; 0 keeps it while there is space.
	Kept time.Duration
	// Pressed reports whether the database has little space.
	Pressed func() bool
	// Paused reports whether no history may be compacted at present; nil for never.
	Paused func() bool

	points []point // oldest first
	last   point   // the last compaction: its time and revision
}

// A point is a revision, the time when it was current, and the number of deletions up to it.
type point struct {
	at      time.Time
	rev     int64
	deleted int64
}

// add appends a point. Points are added in the order of time.
func (c *Compactor) add(p point) { c.points = append(c.points, p) }

// due returns the revision to compact to, or 0.
func (c *Compactor) due(now time.Time, deleted int64) int64 {
	switch {
	case c.Pressed():
		return c.take(now, pressedHistory)
	case c.Kept == 0:
		c.points = nil
		return 0
	}
	if p := c.older(now, deletedHistory); p != nil && c.Kept > deletedHistory {
		if many := p.deleted - c.last.deleted; many >= manyDeleted && deleted-p.deleted <= many/fewDeleted {
			return c.take(now, deletedHistory)
		}
	}
	if now.Sub(c.last.at) < c.Kept {
		return 0 // compacting reads the whole index
	}
	return c.take(now, c.Kept)
}

// older returns the newest point of at least the given age, or nil.
func (c *Compactor) older(now time.Time, age time.Duration) *point {
	var found *point
	for i := range c.points {
		if now.Sub(c.points[i].at) >= age {
			found = &c.points[i]
		}
	}
	return found
}

// take returns the revision of the newest point of at least the given age, and drops the
// points up to it. It returns 0 if there is none, or if that revision is compacted already.
func (c *Compactor) take(now time.Time, age time.Duration) int64 {
	p := c.older(now, age)
	if p == nil {
		return 0
	}
	rev, last := p.rev, c.last.rev
	c.last = point{now, rev, p.deleted}
	for len(c.points) > 0 && c.points[0].rev <= rev {
		c.points = c.points[1:]
	}
	if rev == last {
		return 0
	}
	return rev
}

// Run compacts until ctx ends. deleted returns the number of deletions since the start. Kubernetes' compactor cannot be
// used: it needs endpoints, which an in-process client lacks.
func (c *Compactor) Run(ctx context.Context, client *clientv3.Client, deleted func() int64) {
	every := space.MeasureEvery
	if c.Kept > 0 {
		every = min(every, max(c.Kept/10, time.Millisecond))
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	c.last.at = time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if c.Paused != nil && c.Paused() {
				continue
			}
			resp, err := client.Get(ctx, "\x00", clientv3.WithSerializable(), clientv3.WithCountOnly())
			if err != nil {
				continue // the client is closing
			}
			c.add(point{now, resp.Header.Revision, deleted()})
			rev := c.due(now, deleted())
			if rev == 0 {
				continue
			}
			if _, err := client.Compact(ctx, rev); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "History not compacted", "revision", rev)
			}
		}
	}
}
