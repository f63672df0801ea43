package watchcache

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/storage/storetest"
)

// Many watches of one client can end at once, even before they have begun.
func TestManyWatchesEnd(t *testing.T) {
	s, _, stop := open(t, t.TempDir())
	defer stop()
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		var all []clientv3.WatchChan
		for range 1000 {
			all = append(all, s.direct.Watch(ctx, s.Prefix()+"/c/"))
		}
		cancel()
		for _, w := range all {
			for range w {
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), storetest.Patience)
	defer cancel()
	if r, ok := <-s.direct.Watch(ctx, s.Prefix()+"/c/", clientv3.WithCreatedNotify()); !ok || !r.Created {
		t.Errorf("a watch after many: %+v", r)
	}
}
