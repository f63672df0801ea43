package virtual

import (
	"context"
	"encoding/json"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	cacheapi "github.com/unforked/kcp/apis/cache/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/values"
)

// maxCounted and maxCountedBytes are the maximum of what is read to count the objects that a selector
// selects. The ledger counts objects without a selector, however many there are.
const (
	maxCounted      = 500
	maxCountedBytes = 1 << 20
)

// Count brings the counts in the status of a ClusterCachedResource up to date.
func (x *Storage) Count(ctx context.Context, c cluster.Name, name string) error {
	r := &cacheapi.ClusterCachedResource{}
	rev, err := x.store.ReadInto(ctx, x.Resource.Key(c, "", name), r)
	if err != nil || rev == 0 || r.DeletionTimestamp != nil {
		return err
	}
	row, err := cachedOf(r)
	if err != nil {
		return err
	}
	n, err := x.counts(ctx, c, row)
	if err != nil || equality.Semantic.DeepEqual(n, r.Status.ResourceCounts) {
		return err
	}
	r.Status.ResourceCounts = n
	stored, err := values.Unstructured(r, cacheapi.GroupVersion.WithKind("ClusterCachedResource"))
	if err != nil {
		return err
	}
	_, err = x.store.Commit(ctx, []store.Write{{Resource: x.Resource, Cluster: c, Object: stored, Expect: rev}})
	return err
}

// counts returns how many objects of a cluster a ClusterCachedResource publishes. They are their own
// copies. It returns nil if they cannot be read, or are too many.
func (x *Storage) counts(ctx context.Context, c cluster.Name, r *Cached) (*cacheapi.ResourceCounts, error) {
	in, err := x.source(c, r.GroupResource, r.Version)
	if err != nil {
		return nil, nil //nolint:nilerr // the conditions of the status say so
	}
	of := keys.CustomResource(r.GroupResource, in.Identity)
	all := x.store.Feed().Ledger().Usage(c, of)
	n := int(all.Objects)
	if r.Part.String() != "" {
		if all.Objects > maxCounted || all.Bytes > maxCountedBytes {
			return nil, nil
		}
		page, _, err := x.store.Page(ctx, of, store.Place{Cluster: c}, maxCounted)
		if err != nil {
			return nil, err
		}
		if n, err = r.selected(ctx, page, c); err != nil {
			return nil, err
		}
	}
	return &cacheapi.ResourceCounts{Cache: n, Local: n}, nil
}

// selected counts the objects of a cluster in a page that a ClusterCachedResource publishes.
func (r *Cached) selected(ctx context.Context, page []store.Item, c cluster.Name) (n int, err error) {
	for _, i := range page {
		if i.Key.Cluster != c {
			break
		}
		data, err := i.JSON(ctx)
		if err != nil {
			return 0, err
		}
		var o metav1.PartialObjectMetadata
		if json.Unmarshal(data, &o) == nil && r.Part.Has(o.Labels) {
			n++
		}
	}
	return n, nil
}
