package bind

import (
	"context"
	"encoding/json"

	cacheapi "github.com/unforked/kcp/apis/cache/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/feed"
	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/store"
)

// maxCounted is the maximum of objects that are read to count those that a selector selects.
const maxCounted = 200

// counts returns how many objects of a cluster a ClusterCachedResource publishes. They are their own
// copies. The ledger knows all objects of a resource. Those that a selector selects must be read:
// of more than [maxCounted] objects there is no count.
func (a *APIs) counts(ctx context.Context, c cluster.Name, r keys.Resource, p feed.Part) (*cacheapi.ResourceCounts, error) {
	n := a.store.Feed().Ledger().Objects(c, r)
	if p.String() != "" && n > maxCounted {
		return nil, nil
	}
	if p.String() != "" {
		page, _, err := a.store.Page(ctx, r, store.Place{Cluster: c}, maxCounted)
		if err != nil {
			return nil, err
		}
		if n, err = selected(ctx, page, c, p); err != nil {
			return nil, err
		}
	}
	return &cacheapi.ResourceCounts{Cache: int(n), Local: int(n)}, nil
}

// selected counts the objects of a cluster in a page that a part has.
func selected(ctx context.Context, page []store.Item, c cluster.Name, p feed.Part) (n int64, err error) {
	for _, i := range page {
		if i.Key.Cluster != c {
			break
		}
		var o struct {
			Metadata struct {
				Labels map[string]string `json:"labels"`
			} `json:"metadata"`
		}
		data, err := i.JSON(ctx)
		if err != nil {
			return 0, err
		}
		if json.Unmarshal(data, &o) == nil && p.Has(o.Metadata.Labels) {
			n++
		}
	}
	return n, nil
}
