package etcd

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// early is a KV that calls then between the first and the second request.
type early struct {
	clientv3.KV
	first bool
	then  func()
}

func (e *early) Txn(ctx context.Context) clientv3.Txn {
	if e.first {
		e.then()
	}
	e.first = !e.first
	return e.KV.Txn(ctx)
}

func (e *early) Put(ctx context.Context, key, value string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	e.then()
	return e.KV.Put(ctx, key, value, opts...)
}

// Two programs of different versions start on an empty etcd at the same time. The second one
// finds the format of the first and does not overwrite it.
func TestTwoBegin(t *testing.T) {
	kv := opened(t, Config{}).Client.KV
	newer := Format{KV: kv, Prefix: "/both", Key: "/both/s/meta", Kubernetes: "1.37"}
	older := newer
	older.Kubernetes = "1.36"
	older.KV = &early{KV: kv, then: func() {
		if _, err := newer.Check(t.Context()); err != nil {
			t.Error(err)
		}
	}}
	if _, err := older.Check(t.Context()); err == nil {
		t.Error("an older program begins beside a newer one")
	}
	if _, err := newer.Check(t.Context()); err != nil {
		t.Error(err)
	}
	older.Kubernetes = "1.37"
	if _, err := older.Check(t.Context()); err != nil {
		t.Errorf("another of the same version: %v", err)
	}
}
