package external

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp/internal/storage/etcdtest"
)

// countedKV counts the requests that reach etcd.
type countedKV struct {
	clientv3.KV
	requests *atomic.Int64
}

func (c countedKV) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	c.requests.Add(1)
	return c.KV.Do(ctx, op)
}

// Without a quorum, requests fail at once and are not sent to etcd. They succeed after the
// quorum is back. Their errors contain no address.
func TestCircuit(t *testing.T) {
	t.Parallel()
	members := etcdtest.Start(t, etcdtest.Options{Members: 3})
	client, err := clientv3.New(clientv3.Config{Endpoints: members.Servers()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() }) // returns only the error of its cancelled context
	circuit := newCircuit(client.KV, client.Endpoints)
	t.Cleanup(circuit.close)
	var sent atomic.Int64
	kv := timeouts{countedKV{client.KV, &sent}, circuit}
	if _, err := kv.Put(t.Context(), "/x", ""); err != nil {
		t.Fatal(err)
	}
	for _, m := range members.Members[1:] {
		m.Kill()
	}
	_, err = kv.Put(t.Context(), "/x", "")
	for ; !apierrors.IsServiceUnavailable(err); _, err = kv.Put(t.Context(), "/x", "") {
		if !apierrors.IsTimeout(err) || strings.Contains(err.Error(), "127.0.0.1") {
			t.Fatalf("a write without quorum: %v", err)
		}
	}
	before := sent.Load()
	for range 100 {
		_, read := kv.Get(t.Context(), "/x")
		_, write := kv.Put(t.Context(), "/x", "")
		for _, err := range []error{read, write} {
			if wait, ok := apierrors.SuggestsClientDelay(err); !apierrors.IsServiceUnavailable(err) || !ok || wait == 0 || strings.Contains(err.Error(), "127.0.0.1") {
				t.Fatalf("in the outage: %v", err)
			}
		}
	}
	if n := sent.Load() - before; n != 0 {
		t.Errorf("%d requests were sent in the outage", n)
	}
	if _, err := kv.Get(t.Context(), "/x", clientv3.WithSerializable()); err != nil && !apierrors.IsServiceUnavailable(err) {
		t.Errorf("a read that needs no quorum: %v", err)
	}
	for _, m := range members.Members[1:] {
		m.Start()
	}
	for _, err = kv.Put(t.Context(), "/x", ""); err != nil; _, err = kv.Put(t.Context(), "/x", "") {
		if !apierrors.IsServiceUnavailable(err) && !apierrors.IsTimeout(err) {
			t.Fatal(err)
		}
	}
}
