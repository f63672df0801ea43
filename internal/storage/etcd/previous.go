package etcd

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Previous completes an event of a watch that requests previous values. An event may lack its
// previous value for two reasons. It happened while the watch began: etcd applies the options
// of a watch shortly after its begin. Or the value is compacted: then Previous fails with
// rpctypes.ErrCompacted.
func Previous(ctx context.Context, from clientv3.KV, e *clientv3.Event) error {
	if e.PrevKv != nil || e.IsCreate() {
		return nil
	}
	resp, err := from.Get(ctx, string(e.Kv.Key), clientv3.WithRev(e.Kv.ModRevision-1))
	if err != nil {
		return err
	}
	if len(resp.Kvs) > 0 {
		e.PrevKv = resp.Kvs[0]
	}
	return nil
}
