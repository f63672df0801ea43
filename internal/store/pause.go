package store

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

type pauseKey struct{}

// WithPause returns a context for a request that has pause called before it waits for a
// write to be committed, and what that returns when it goes on.
func WithPause(ctx context.Context, pause func() (back func())) context.Context {
	return context.WithValue(ctx, pauseKey{}, pause)
}

// Pause has wait called as a request of ctx that waits for a write to be committed.
func Pause(ctx context.Context, wait func()) {
	if pause, ok := ctx.Value(pauseKey{}).(func() (back func())); ok {
		defer pause()()
	}
	wait()
}

func committed(ctx context.Context, txn clientv3.Txn) (resp *clientv3.TxnResponse, err error) {
	Pause(ctx, func() { resp, err = txn.Commit() })
	return resp, err
}
