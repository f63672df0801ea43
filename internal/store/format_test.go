package store

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// early has something else happen between the first and the second thing that is done.
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

// Of two programs that begin in an empty etcd at the same time, the one that comes later
// finds what the other has written, and does not say that it is older than it is.
func TestTwoBegin(t *testing.T) {
	s, _, stop := open(t, t.TempDir())
	defer stop()
	newer := &Store{prefix: "/both", backend: &backend{client: s.RawClient()}}
	older := &Store{prefix: "/both", backend: &backend{client: clientv3.NewCtxClient(t.Context())}}
	older.backend.client.KV = &early{KV: s.RawClient().KV, then: func() {
		if _, err := newer.checkFormat(t.Context(), "1.37"); err != nil {
			t.Error(err)
		}
	}}
	if _, err := older.checkFormat(t.Context(), "1.36"); err == nil {
		t.Error("an older program begins beside a newer one")
	}
	if _, err := newer.checkFormat(t.Context(), "1.37"); err != nil {
		t.Error(err)
	}
	if _, err := older.checkFormat(t.Context(), "1.37"); err != nil {
		t.Errorf("another of the same version: %v", err)
	}
}
