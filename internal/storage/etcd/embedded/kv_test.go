package embedded

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp/internal/storage/etcd/space"
)

// A read of the etcd in this process sees every write that was acknowledged before it began, also
// one by another goroutine, in a transaction or not.
func TestReadsSeeAcknowledgedWrites(t *testing.T) {
	kv := opened(t).Client
	reads := map[string]func(key string) (value string, rev int64, err error){
		"get": func(key string) (string, int64, error) {
			r, err := kv.Get(t.Context(), key)
			if err != nil || len(r.Kvs) == 0 {
				return "", 0, err
			}
			return string(r.Kvs[0].Value), r.Header.Revision, nil
		},
		"do": func(key string) (string, int64, error) {
			r, err := kv.Do(t.Context(), clientv3.OpGet(key))
			if err != nil || len(r.Get().Kvs) == 0 {
				return "", 0, err
			}
			return string(r.Get().Kvs[0].Value), r.Get().Header.Revision, nil
		},
		"txn": func(key string) (string, int64, error) {
			r, err := kv.Txn(t.Context()).If(clientv3.Compare(clientv3.ModRevision(key), ">", 0)).Then(clientv3.OpGet(key)).Commit()
			if err != nil || !r.Succeeded {
				return "", 0, err
			}
			return string(r.Responses[0].GetResponseRange().Kvs[0].Value), r.Header.Revision, nil
		},
	}
	var all sync.WaitGroup
	for writer := range 8 {
		all.Go(func() {
			key := fmt.Sprint("/w", writer)
			for n := range 200 {
				want := fmt.Sprint(n)
				put, err := kv.Put(t.Context(), key, want)
				if err != nil {
					t.Error(err)
					return
				}
				for name, read := range reads {
					if got, rev, err := read(key); err != nil || got != want || rev < put.Header.Revision {
						t.Errorf("%s: %q at revision %d after %q was acknowledged at %d, %v", name, got, rev, want, put.Header.Revision, err)
						return
					}
				}
			}
		})
	}
	all.Wait()
}

// Reads in a nested transaction do not wait for the disk either; writes stay what they are.
func TestLocalReads(t *testing.T) {
	inner := clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpGet("/a"), clientv3.OpPut("/b", "x")}, []clientv3.Op{clientv3.OpDelete("/c")})
	ops := []clientv3.Op{clientv3.OpGet("/d"), inner}
	all := local(ops)
	_, then, alse := all[1].Txn()
	if !all[0].IsSerializable() || !then[0].IsSerializable() || !then[1].IsPut() || !alse[0].IsDelete() {
		t.Errorf("%v", all)
	}
	if ops[0].IsSerializable() {
		t.Error("the caller's operations are changed")
	}
}

// A read after an event of a watch sees at least the revision of the event.
func TestReadsSeeWatchedEvents(t *testing.T) {
	b := opened(t)
	const writes = 2000
	events := b.Client.Watch(t.Context(), "/w")
	var writing sync.WaitGroup
	writing.Go(func() {
		for n := range writes {
			if _, err := b.Client.Put(t.Context(), "/w", fmt.Sprint(n)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for seen := 0; seen < writes; {
		r := <-events
		if err := r.Err(); err != nil || len(r.Events) == 0 {
			t.Fatalf("%d events, %v", seen, err)
		}
		seen += len(r.Events)
		at := r.Events[len(r.Events)-1].Kv.ModRevision
		if _, err := b.Client.Get(t.Context(), "/w", clientv3.WithRev(at)); err != nil {
			t.Fatalf("a read at the revision of event %d: %v", seen, err)
		}
	}
	writing.Wait()
}

// failing is a KV and its transaction, which fail.
type failing struct {
	clientv3.KV
	err error
}

func (f failing) Txn(context.Context) clientv3.Txn       { return f }
func (f failing) If(...clientv3.Cmp) clientv3.Txn        { return f }
func (f failing) Then(...clientv3.Op) clientv3.Txn       { return f }
func (f failing) Else(...clientv3.Op) clientv3.Txn       { return f }
func (f failing) Commit() (*clientv3.TxnResponse, error) { return nil, f.err }

// A client learns that a write on a slow disk may have been made, and that it can try again a read or what etcd refused.
func TestSlowDisk(t *testing.T) {
	write, read := clientv3.OpPut("/a", "x"), clientv3.OpGet("/a")
	for name, c := range map[string]struct {
		err  error
		op   clientv3.Op
		want func(error) bool
	}{
		"a write that timed out":     {rpctypes.ErrTimeout, write, apierrors.IsTimeout},
		"a read that timed out":      {rpctypes.ErrTimeout, read, apierrors.IsServiceUnavailable},
		"a write after the election": {rpctypes.ErrTimeoutDueToLeaderFail, write, apierrors.IsTimeout},
		"too many writes":            {rpctypes.ErrTooManyRequests, write, apierrors.IsServiceUnavailable},
		"an error of the request":    {rpctypes.ErrCompacted, write, func(err error) bool { return errors.Is(err, rpctypes.ErrCompacted) }},
	} {
		kv := localKV{failing{err: c.err}, &space.Capacity{}}
		_, err := kv.Txn(t.Context()).If().Then(c.op).Commit()
		if !c.want(err) || !errors.Is(err, c.err) || apierrors.ReasonForError(err) != "" && strings.Contains(err.Error(), "etcdserver") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
