package store

import (
	"context"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/storage/keys"
)

// A Condition makes the writes of a request depend on one more key, on which an earlier
// decision was based. The key is compared in the transaction of the write, so that the
// decision still holds then, whatever other processes wrote in between. A write may have
// several conditions.
type Condition struct {
	// Of is the resource to whose writes the condition applies.
	Of keys.Resource
	// On is the key that must be at Revision; 0 means that there must be none.
	On       keys.Key
	Revision int64
	// Advance makes the write change the key too: of several writes based on the same
	// decision, one succeeds.
	Advance bool
	// Renew decides again when the key is at another revision, 0 for none. It returns the
	// revision to continue with, or an error, with which the request fails.
	Renew func(ctx context.Context, revision int64) (int64, error)
}

type conditionKey struct{}

// WithCondition returns a context for requests whose writes depend on each c, and on the
// conditions of ctx. One key must not occur in two conditions of a resource.
func WithCondition(ctx context.Context, c ...*Condition) context.Context {
	before, _ := ctx.Value(conditionKey{}).([]*Condition)
	return context.WithValue(ctx, conditionKey{}, slices.Concat(before, c))
}

// conditionsOf returns the conditions of writes to r.
func conditionsOf(ctx context.Context, r keys.Resource) []*Condition {
	var own []*Condition
	all, _ := ctx.Value(conditionKey{}).([]*Condition)
	for _, c := range all {
		if c.Of == r {
			copied := *c // its revision may be renewed for this write
			own = append(own, &copied)
		}
	}
	return own
}

func (c *Condition) compare(prefix string) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(prefix+c.On.Path()), "=", c.Revision)
}

func (c *Condition) read(prefix string) clientv3.Op {
	return clientv3.OpGet(prefix+c.On.Path(), clientv3.WithKeysOnly())
}

// advance returns the operation that changes the key. The value has no meaning.
func (c *Condition) advance(prefix string) clientv3.Op {
	return clientv3.OpPut(prefix+c.On.Path(), "-")
}

// renewed updates the condition after a failed transaction that read the key, and reports
// whether to try again.
func (c *Condition) renewed(ctx context.Context, kv *mvccpb.KeyValue) (bool, error) {
	var now int64
	if kv != nil {
		now = kv.ModRevision
	}
	if now == c.Revision {
		return false, nil
	}
	var err error
	c.Revision, err = c.Renew(ctx, now)
	return err == nil, err
}

type writtenKey struct{}

// noteWrite notes that the update of ctx has written. See [Store.RunUpdate].
func noteWrite(ctx context.Context) {
	if written, ok := ctx.Value(writtenKey{}).(*bool); ok {
		*written = true
	}
}

// RunUpdate runs an update of an object of r, which makes at most one write. If the update changes
// nothing, no transaction compares its conditions, so RunUpdate checks them afterwards. An outdated
// schema, for example, may have dropped a new field, so that there seems to be no change.
func (s *Store) RunUpdate(ctx context.Context, r keys.Resource, update func(context.Context) error) error {
	conditions := conditionsOf(ctx, r)
	if len(conditions) == 0 {
		return update(ctx)
	}
	written := false
	if err := update(context.WithValue(ctx, writtenKey{}, &written)); err != nil || written {
		return err
	}
	g := s.guard
	reads := make([]clientv3.Op, len(conditions))
	for i, c := range conditions {
		reads[i] = c.read(g.prefix)
	}
	resp, err := g.kv.Txn(ctx).Then(reads...).Commit()
	if err != nil {
		return err
	}
	g.saw(resp.Header.Revision)
	for i, c := range conditions {
		if _, err := c.renewed(ctx, first(resp.Responses[i].GetResponseRange())); err != nil {
			return err
		}
	}
	return nil
}
