package store

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/klog/v2"
)

// compactKey is where all Kubernetes API servers on one etcd, whatever their prefix,
// agree on which of them compacts.
const compactKey = "compact_rev_key"

// A gauge knows how full an etcd outside this process is, and keeps its history short.
type gauge struct {
	*capacity
	client  *clientv3.Client
	inUse   atomic.Int64
	pressed chan struct{} // gets a value when history should be kept for a shorter time
}

func newGauge(client *clientv3.Client) *gauge {
	g := &gauge{client: client, pressed: make(chan struct{}, 1)}
	g.capacity = newCapacity(g.inUse.Load, 0)
	return g
}

// watch looks every few seconds until ctx ends.
func (g *gauge) watch(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			g.look(ctx)
		}
	}
}

// look asks every server: each has a file of its own, and the fullest counts.
func (g *gauge) look(ctx context.Context) {
	var inUse, quota int64
	full, answered := false, false
	for _, server := range g.client.Endpoints() {
		each, done := context.WithTimeout(ctx, keepAliveTimeout)
		is, err := g.client.Status(each, server)
		done()
		if err != nil {
			continue // the others know as much, and if none does it stays as it was
		}
		answered = true
		inUse = max(inUse, is.DbSizeInUse)
		if is.DbSizeQuota > 0 && (quota == 0 || is.DbSizeQuota < quota) {
			quota = is.DbSizeQuota
		}
		full = full || slices.ContainsFunc(is.Errors, func(e string) bool { return strings.Contains(e, pb.AlarmType_NOSPACE.String()) })
	}
	if !answered {
		return
	}
	g.inUse.Store(inUse)
	g.quota.Store(quota)
	g.full.Store(full)
	if full || g.above(pressedAt) {
		select {
		case g.pressed <- struct{}{}:
		default:
		}
	}
}

// keepShort compacts history that is older than kept, and when the database fills up
// after a minute, unless another process does it, until ctx ends.
func (g *gauge) keepShort(ctx context.Context, kept time.Duration) {
	turn := turn{}
	next := time.NewTimer(kept)
	defer next.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.pressed:
			if time.Since(last) < min(kept, pressedHistory) {
				continue
			}
		case <-next.C:
		}
		var err error
		if turn, err = turn.take(ctx, g.client); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "History not compacted", "revision", turn.newest)
		}
		last = time.Now()
		next.Reset(kept)
	}
}

// A turn is what a process knows of when history was compacted: how often, and the
// newest revision at that time, to which the next turn compacts.
type turn struct{ count, newest int64 }

// take compacts if nobody has since the last turn. Those who come too late learn of
// the turn of the other, and wait for theirs.
func (t turn) take(ctx context.Context, client *clientv3.Client) (turn, error) {
	resp, err := client.Txn(ctx).If(clientv3.Compare(clientv3.Version(compactKey), "=", t.count)).
		Then(clientv3.OpPut(compactKey, strconv.FormatInt(t.newest, 10))).
		Else(clientv3.OpGet(compactKey)).Commit()
	if err != nil {
		return t, err
	}
	now := turn{t.count + 1, resp.Header.Revision}
	if !resp.Succeeded {
		if kv := first(resp.Responses[0].GetResponseRange()); kv != nil {
			now.count = kv.Version
		} else {
			now.count = 0
		}
		return now, nil
	}
	if t.newest == 0 {
		return now, nil
	}
	_, err = client.Compact(ctx, t.newest)
	return now, err
}
