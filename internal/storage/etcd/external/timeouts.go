package external

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/storage/etcd/outage"
)

const (
	// ReadTimeout is the maximum time for one server to answer a small read. Then the read is
	// sent again, usually to another server, up to readAttempts times.
	ReadTimeout  = 2 * time.Second
	readAttempts = 3
	// RequestTimeout is the maximum time for all other requests, except reads of many
	// objects.
	RequestTimeout = 6 * time.Second
	listTimeout    = 30 * time.Second
)

// timeouts limits the duration of requests to an external etcd, and converts errors to API
// statuses.
type timeouts struct {
	kv      clientv3.KV
	circuit *circuit
}

var _ clientv3.KV = timeouts{}

// Get implements [clientv3.KV].
func (t timeouts) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	r, err := t.Do(ctx, clientv3.OpGet(key, opts...))
	return r.Get(), err
}

// Put implements [clientv3.KV].
func (t timeouts) Put(ctx context.Context, key, value string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	r, err := t.Do(ctx, clientv3.OpPut(key, value, opts...))
	return r.Put(), err
}

// Delete implements [clientv3.KV].
func (t timeouts) Delete(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	r, err := t.Do(ctx, clientv3.OpDelete(key, opts...))
	return r.Del(), err
}

// Compact implements [clientv3.KV].
func (t timeouts) Compact(ctx context.Context, rev int64, opts ...clientv3.CompactOption) (*clientv3.CompactResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	return t.kv.Compact(ctx, rev, opts...)
}

// Txn implements [clientv3.KV].
func (t timeouts) Txn(ctx context.Context) clientv3.Txn { return &timeoutsTxn{ctx: ctx, by: t} }

// Do implements [clientv3.KV].
func (t timeouts) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	if !op.IsGet() {
		return t.once(ctx, op, RequestTimeout, outage.Changes(op))
	}
	if len(op.RangeBytes()) > 0 && !op.IsCountOnly() {
		return t.once(ctx, op, listTimeout, false)
	}
	for n := 1; ; n++ {
		began := time.Now()
		r, err := t.once(ctx, op, ReadTimeout, false)
		if err == nil || n == readAttempts || ctx.Err() != nil || time.Since(began) < ReadTimeout {
			return r, err // only timeouts of a single server are retried
		}
	}
}

func (t timeouts) once(ctx context.Context, op clientv3.Op, limit time.Duration, writes bool) (clientv3.OpResponse, error) {
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if op.IsGet() && op.IsSerializable() { // any server can answer it, even without quorum
		r, err := t.send(bounded, op)
		if err != nil && ctx.Err() == nil {
			err = outage.Status(err, false)
		}
		return r, err
	}
	request, leave, down := t.circuit.enter(bounded)
	if down != nil {
		return clientv3.OpResponse{}, outage.Status(down, false)
	}
	defer leave()
	r, err := t.send(request, op)
	if err == nil || ctx.Err() != nil {
		return r, err
	}
	if errors.Is(context.Cause(request), outage.ErrUnavailable) {
		err = outage.ErrUnavailable
	} else if outage.Is(err) {
		t.circuit.suspect()
	}
	return r, outage.Status(err, writes)
}

// send sends op to etcd. The request gives up its seat while it waits.
func (t timeouts) send(ctx context.Context, op clientv3.Op) (r clientv3.OpResponse, err error) {
	fair.Wait(ctx, func() { r, err = t.kv.Do(ctx, op) })
	return r, err
}

// timeoutsTxn builds a transaction for [timeouts.Do].
type timeoutsTxn struct {
	ctx        context.Context // the interface of clientv3.Txn passes no context later
	by         timeouts
	compares   []clientv3.Cmp
	then, alse []clientv3.Op
}

// If implements [clientv3.Txn].
func (t *timeoutsTxn) If(cs ...clientv3.Cmp) clientv3.Txn {
	t.compares = append(t.compares, cs...)
	return t
}

// Then implements [clientv3.Txn].
func (t *timeoutsTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.then = append(t.then, ops...)
	return t
}

// Else implements [clientv3.Txn].
func (t *timeoutsTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.alse = append(t.alse, ops...)
	return t
}

// Commit implements [clientv3.Txn].
func (t *timeoutsTxn) Commit() (*clientv3.TxnResponse, error) {
	r, err := t.by.Do(t.ctx, clientv3.OpTxn(t.compares, t.then, t.alse))
	return r.Txn(), err
}
