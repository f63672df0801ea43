package store

import (
	"context"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/cluster"
)

// A Condition makes the writes of a request depend on one more key: on what a
// decision was based that was made before the write. It is compared in the same
// transaction, so that the decision still holds when the write is made, whichever
// process has changed what since.
type Condition struct {
	// Of is the resource whose writes it concerns.
	Of Resource
	// On is the key that must be at Revision; 0 means that there must be none.
	On       Key
	Revision int64
	// Advance has the write change the key too: of several who decided on the same
	// grounds, one wins.
	Advance bool
	// Renew decides again when the key is at another revision, 0 for none. It returns
	// the revision to go on with, if the decision is the same, or else an error,
	// which the request fails with.
	Renew func(ctx context.Context, revision int64) (int64, error)
}

type conditionKey struct{}

// WithCondition returns a context for requests whose writes depend on c.
func WithCondition(ctx context.Context, c *Condition) context.Context {
	return context.WithValue(ctx, conditionKey{}, c)
}

// conditionOf returns what writes to r depend on, or nil.
func conditionOf(ctx context.Context, r Resource) *Condition {
	c, ok := ctx.Value(conditionKey{}).(*Condition)
	if !ok || c.Of != r {
		return nil
	}
	own := *c // its revision may be renewed for this write
	return &own
}

func (c *Condition) compare(prefix string) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(prefix+c.On.full()), "=", c.Revision)
}

func (c *Condition) read(prefix string) clientv3.Op {
	return clientv3.OpGet(prefix+c.On.full(), clientv3.WithKeysOnly())
}

// advance returns the operation that changes the key. Its value says nothing.
func (c *Condition) advance(prefix string) clientv3.Op {
	return clientv3.OpPut(prefix+c.On.full(), "-")
}

// renewed takes in the key as a failed transaction read it, and reports whether it
// is worth to try again.
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

// Revision returns the revision of a key, 0 if there is none, and that of the store
// at which it was read.
func (s *Store) Revision(ctx context.Context, k Key) (revision, at int64, err error) {
	if err := k.check(); err != nil {
		return 0, 0, err
	}
	resp, err := s.backend.client.Get(ctx, s.prefix+k.full(), clientv3.WithKeysOnly())
	if err != nil {
		return 0, 0, err
	}
	s.guard.saw(resp.Header.Revision)
	if len(resp.Kvs) > 0 {
		revision = resp.Kvs[0].ModRevision
	}
	return revision, resp.Header.Revision, nil
}

// SystemKey is where the server keeps a note of its own about a cluster.
func SystemKey(c cluster.Name, resource, name string) Key {
	return Key{Resource: Resource{Root: System, Resource: resource}, Cluster: c, Name: name}
}
