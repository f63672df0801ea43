package embedded

import (
	"context"
	"errors"
	"testing"

	"go.etcd.io/etcd/server/v3/storage/wal"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/etcd/space"
)

// As the disk fills, creations of tenants are refused first, and then all writes.
func TestDisk(t *testing.T) {
	m := opened(t)
	var free int64
	disk := space.NewDisk(space.New(func() int64 { return 0 }, QuotaBytes), t.TempDir(), "", false)
	disk.Free = func(string) (int64, error) { return free, nil }
	kv := localKV{m.Client.KV.(localKV).KV, disk.Capacity}
	deletes := request.WithRequestInfo(t.Context(), &request.RequestInfo{IsResourceRequest: true, Verb: "delete"})
	updates := request.WithRequestInfo(t.Context(), &request.RequestInfo{IsResourceRequest: true, Verb: "update"})
	full := wal.SegmentSizeBytes + space.DiskGrowth
	for _, c := range []struct {
		free                                    int64
		creates, large, small, deletion, system int32 // status codes; 0 for success
	}{
		{free: 10 * full},
		{free: full * 3 / 2, creates: 507, large: 429},
		{free: full - 1, creates: 507, large: 507, small: 507, deletion: 507, system: 507},
		{free: 10 * full},
	} {
		free = c.free
		disk.Measure(t.Context())
		refuse := func(ctx context.Context, bytes int, creates bool) int32 {
			return code(disk.Refuse(ctx, "c1", bytes, creates))
		}
		_, err := kv.Put(t.Context(), "/x", "")
		if system := disk.Refuse(t.Context(), cluster.Admin, 1, true); system != nil {
			t.Errorf("with %d bytes free: the server's own: %v", free, system)
		}
		for name, got := range map[string][2]int32{
			"create":          {refuse(updates, 1, true), c.creates},
			"large update":    {refuse(updates, 100<<20, false), c.large},
			"small update":    {refuse(updates, 1, false), c.small},
			"deletion":        {refuse(deletes, 1, false), c.deletion},
			"the server's":    {code(err), c.system},
			"a deletion's":    {code(second(kv.Delete(t.Context(), "/x"))), c.system},
			"a transaction's": {code(second(kv.Txn(t.Context()).Then().Commit())), 0}, // a transaction without writes
		} {
			if name == "large update" && c.large == 0 {
				continue // with enough space, sizes are not limited
			}
			if got[0] != got[1] {
				t.Errorf("with %d bytes free: %s: %d, want %d", free, name, got[0], got[1])
			}
		}
		if _, err := kv.Get(t.Context(), "/x"); err != nil {
			t.Errorf("with %d bytes free: a read: %v", free, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func code(err error) int32 {
	var s apierrors.APIStatus
	if errors.As(err, &s) {
		return s.Status().Code
	}
	return 0
}
