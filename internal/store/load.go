package store

import (
	"context"

	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
)

type loadKey struct{}

// WithLoad returns a context for a request that has grow called with the bytes of memory
// that it is about to take, or less than none that it has let go of, and fails with the
// error of that. What a request lets go of when it ends is not told.
func WithLoad(ctx context.Context, grow func(bytes int64) error) context.Context {
	return context.WithValue(ctx, loadKey{}, grow)
}

func grow(ctx context.Context, bytes int64) error {
	if f, ok := ctx.Value(loadKey{}).(func(int64) error); ok && bytes != 0 {
		return f(bytes)
	}
	return nil
}

const (
	// valueWeight is what a value takes beside its text, and objectWeight what an object
	// takes: it is a map with room for some members. A few bytes of JSON can take hundreds.
	valueWeight  = 32
	objectWeight = 350
	// manyTimes its text an object takes where nobody looks into it before.
	manyTimes = 20
)

// weigh estimates how many bytes of memory a decoded value takes.
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

// stored estimates how many bytes a list of r in a cluster reads from etcd.
func (s *Store) stored(ctx context.Context, r Resource, o storage.ListOptions) int64 {
	c, err := cluster.One(ctx)
	if err != nil || !o.Recursive {
		return 0
	}
	u := s.spine.Ledger().of(c, r)
	if limit := o.Predicate.Limit; limit > 0 && limit < u.Objects {
		return u.Bytes / u.Objects * limit
	}
	return u.Bytes
}
