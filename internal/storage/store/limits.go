package store

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/unforked/kcp/internal/quota"
	"github.com/unforked/kcp/internal/storage/etcd/space"
	"github.com/unforked/kcp/internal/storage/keys"
)

// Limits admit writes by what is stored already.
type Limits interface {
	// Charge admits a write, or returns a 403 Status. The write uses the returned context. The
	// charge is nil if nothing counts the write.
	Charge(context.Context, SizedWrite) (context.Context, Charge, error)
	// Wrote records a write of this process at a revision.
	Wrote(k keys.Key, revision int64)
}

// A Charge counts a write until it is settled.
type Charge interface {
	// Settle ends the charge after a write at a revision, 0 if it changed nothing, or after an error.
	Settle(revision int64, err error)
}

// A SizedWrite is a write of an object of so many bytes.
type SizedWrite struct {
	keys.Key
	Bytes   int
	Creates bool
	// Exempt writes are part of a deletion or come from the server itself. The limits of
	// clusters do not hold for them.
	Exempt bool
}

// SetLimits sets the limits of all writes. It must be called before the feed starts.
func (s *Store) SetLimits(l Limits) { s.guard.limits = l }

// Tenants returns what tenants write and store.
func (s *Store) Tenants() *quota.Tenants { return s.guard.tenants }

// charge admits a write. The charge is nil if nothing counts the write.
func (g *guard) charge(ctx context.Context, w SizedWrite) (context.Context, Charge, error) {
	if g.limits == nil {
		return ctx, nil, nil
	}
	return g.limits.Charge(ctx, w)
}

// chargeAll is charge for the creations of a Commit.
func (g *guard) chargeAll(ctx context.Context, writes []Write) (context.Context, []Charge, error) {
	var all []Charge
	for _, w := range writes {
		o, err := meta.Accessor(w.Object)
		if err != nil {
			return ctx, nil, err
		}
		if w.Expect != 0 || w.Delete {
			continue
		}
		var c Charge
		if ctx, c, err = g.charge(ctx, SizedWrite{Key: w.Resource.Key(w.Cluster, o.GetNamespace(), o.GetName()), Creates: true, Exempt: space.ClearsUp(ctx)}); err != nil {
			for _, c := range all {
				c.Settle(0, nil)
			}
			return ctx, nil, err
		}
		if c != nil {
			all = append(all, c)
		}
	}
	return ctx, all, nil
}
