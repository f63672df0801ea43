package embedded

import (
	"context"
	"errors"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/storage/etcd/outage"
	"github.com/unforked/kcp/internal/storage/etcd/space"
)

// localKV is the KV of an etcd in this process. It needs no timeouts of its own, refuses writes while
// the disk is full, and converts errors to API statuses: etcd gives up a write after some seconds if the disk is slow.
//
// Its reads are serializable. etcd acknowledges a write when the member has applied it, and this
// member is the only one: so a read of its applied state sees every acknowledged write. A
// linearizable read returns the same, but waits until raft has written to the disk.
type localKV struct {
	clientv3.KV
	capacity *space.Capacity
}

// Put implements [clientv3.KV].
func (e localKV) Put(ctx context.Context, key, value string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	if err := e.capacity.NoDisk(); err != nil {
		return nil, err
	}
	return e.KV.Put(ctx, key, value, opts...)
}

// Delete implements [clientv3.KV].
func (e localKV) Delete(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	if err := e.capacity.NoDisk(); err != nil {
		return nil, err
	}
	return e.KV.Delete(ctx, key, opts...)
}

// Get implements [clientv3.KV].
func (e localKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	r, err := e.KV.Get(ctx, key, append(slices.Clip(opts), clientv3.WithSerializable())...)
	return r, ended(ctx, err)
}

// ended returns the error of ctx instead of one that etcd made of it.
func ended(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// Do implements [clientv3.KV].
func (e localKV) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	if outage.Changes(op) {
		if err := e.capacity.NoDisk(); err != nil {
			return clientv3.OpResponse{}, err
		}
	}
	r, err := e.KV.Do(ctx, local([]clientv3.Op{op})[0])
	return r, ended(ctx, err)
}

// local returns operations whose reads are serializable.
func local(ops []clientv3.Op) []clientv3.Op {
	all := slices.Clone(ops)
	for i := range all {
		switch {
		case all[i].IsTxn():
			compares, then, alse := all[i].Txn()
			all[i] = clientv3.OpTxn(compares, local(then), local(alse))
		case all[i].IsGet():
			clientv3.WithSerializable()(&all[i])
		}
	}
	return all
}

// Txn implements [clientv3.KV].
func (e localKV) Txn(ctx context.Context) clientv3.Txn {
	return &localTxn{by: e, txn: e.KV.Txn(ctx)}
}

type localTxn struct {
	by     localKV
	txn    clientv3.Txn
	writes bool
}

// If implements [clientv3.Txn].
func (t *localTxn) If(cs ...clientv3.Cmp) clientv3.Txn {
	t.txn = t.txn.If(cs...)
	return t
}

// Then implements [clientv3.Txn].
func (t *localTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.writes = t.writes || slices.ContainsFunc(ops, outage.Changes)
	t.txn = t.txn.Then(local(ops)...)
	return t
}

// Else implements [clientv3.Txn].
func (t *localTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.writes = t.writes || slices.ContainsFunc(ops, outage.Changes)
	t.txn = t.txn.Else(local(ops)...)
	return t
}

// Commit implements [clientv3.Txn].
func (t *localTxn) Commit() (*clientv3.TxnResponse, error) {
	if t.writes {
		if err := t.by.capacity.NoDisk(); err != nil {
			return nil, err
		}
	}
	r, err := t.txn.Commit()
	for _, known := range []error{rpctypes.ErrNoSpace, rpctypes.ErrRequestTooLarge, rpctypes.ErrTooManyRequests, rpctypes.ErrTimeout, rpctypes.ErrTimeoutDueToLeaderFail} {
		if errors.Is(err, known) {
			return r, outage.Status(err, t.writes)
		}
	}
	return r, err
}
