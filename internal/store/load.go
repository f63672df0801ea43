package store

import (
	"context"

	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/fair"
	"github.com/unforked/kcp/internal/feed"
	"github.com/unforked/kcp/internal/keys"
)

// grow counts bytes of memory that the request of ctx will hold. Its error is the answer to
// the request.
func grow(ctx context.Context, bytes int64) error { return fair.Grow(ctx, bytes) }

const (
	// valueWeight is the memory of a value without its text, and objectWeight that of an
	// object: a map with room for some members. A few bytes of JSON can take hundreds.
	valueWeight  = 32
	objectWeight = 350
	// manyTimes is the memory of an object per stored byte, if it is not weighed before.
	manyTimes = 20
)

// weigh estimates the bytes of memory of a decoded value.
func weigh(value any) int64 {
	switch v := value.(type) {
	case map[string]any:
		sum := int64(objectWeight)
		for name, member := range v {
			sum += int64(len(name)) + valueWeight + weigh(member)
		}
		return sum
	case []any:
		sum := int64(valueWeight)
		for _, item := range v {
			sum += weigh(item)
		}
		return sum
	case string:
		return valueWeight + int64(len(v))
	default:
		return valueWeight
	}
}

// usage estimates the objects and bytes that a list of r in a cluster reads.
func (s *Store) usage(ctx context.Context, r keys.Resource, o storage.ListOptions) feed.Usage {
	c, err := cluster.One(ctx)
	if err != nil || !o.Recursive {
		return feed.Usage{}
	}
	u := s.feed.Ledger().Usage(c, r)
	if limit := o.Predicate.Limit; limit > 0 && limit < u.Objects {
		return feed.Usage{Objects: limit, Bytes: u.Bytes / u.Objects * limit}
	}
	return u
}

// stored estimates the bytes that a list of r in a cluster reads from etcd.
func (s *Store) stored(ctx context.Context, r keys.Resource, o storage.ListOptions) int64 {
	return s.usage(ctx, r, o).Bytes
}
