package history

import (
	"context"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/klog/v2"
)

// compactKey is the key by which all Kubernetes API servers on an etcd, with any prefix,
// elect the one that compacts.
const compactKey = "compact_rev_key"

// RunShared compacts the history of an external etcd that is older than kept, until ctx ends.
// A value on pressed starts the next compaction as soon as the last one is pressedHistory
// ago. If another process has compacted since, RunShared does not.
func RunShared(ctx context.Context, client *clientv3.Client, kept time.Duration, pressed <-chan struct{}) {
	turn := turn{}
	next := time.NewTimer(kept)
	defer next.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pressed:
			if time.Since(last) < min(kept, pressedHistory) {
				continue
			}
		case <-next.C:
		}
		var err error
		if turn, err = turn.take(ctx, client); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "History not compacted", "revision", turn.newest)
		}
		last = time.Now()
		next.Reset(kept)
	}
}

// A turn is the last known compaction: its number, and the current revision at that time. The
// next turn compacts to that revision.
type turn struct{ count, newest int64 }

// take compacts unless another process has compacted since turn t. In that case it returns
// the turn of the other process.
func (t turn) take(ctx context.Context, client *clientv3.Client) (turn, error) {
	resp, err := client.Txn(ctx).If(clientv3.Compare(clientv3.Version(compactKey), "=", t.count)).
		Then(clientv3.OpPut(compactKey, strconv.FormatInt(t.newest, 10))).
		Else(clientv3.OpGet(compactKey)).Commit()
	if err != nil {
		return t, err
	}
	now := turn{t.count + 1, resp.Header.Revision}
	if !resp.Succeeded {
		now.count = 0
		if read := resp.Responses[0].GetResponseRange(); len(read.Kvs) > 0 {
			now.count = read.Kvs[0].Version
		}
		return now, nil
	}
	if t.newest == 0 {
		return now, nil
	}
	_, err = client.Compact(ctx, t.newest)
	return now, err
}
