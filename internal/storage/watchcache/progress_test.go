package watchcache

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// A forgetful is an etcd client that commits transactions, but returns an error on demand,
// like for a writer whose context ends after the commit.
type forgetful struct {
	clientv3.KV
	forgets atomic.Bool
}

func (f *forgetful) Txn(ctx context.Context) clientv3.Txn {
	return &forgetfulTxn{f.KV.Txn(ctx), f}
}

type forgetfulTxn struct {
	clientv3.Txn
	by *forgetful
}

func (t *forgetfulTxn) If(cs ...clientv3.Cmp) clientv3.Txn   { t.Txn = t.Txn.If(cs...); return t }
func (t *forgetfulTxn) Then(ops ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Then(ops...); return t }
func (t *forgetfulTxn) Else(ops ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Else(ops...); return t }

func (t *forgetfulTxn) Commit() (*clientv3.TxnResponse, error) {
	resp, err := t.Txn.Commit()
	if err == nil && t.by.forgets.Load() {
		return nil, context.Canceled
	}
	return resp, err
}

// A consistent list contains everything that an earlier get returned, even if the writer did
// not learn of its commit.
func TestListsAreAsNewAsGets(t *testing.T) {
	s, cm, stop := open(t, t.TempDir())
	defer stop()
	create(t, s, "c1")
	if err := cm.Create(in("c1"), cmRoot+"/ns/first", configMap("ns", "first", ""), nil, 0); err != nil {
		t.Fatal(err)
	}
	list := func() int {
		var all corev1.ConfigMapList
		if err := cm.GetList(in("c1"), cmRoot, everything(""), &all); err != nil {
			t.Fatal(err)
		}
		return len(all.Items)
	}
	list() // creates the cache of the resource
	kv := &forgetful{KV: s.RawClient().KV}
	s.RawClient().KV = kv
	kv.forgets.Store(true)
	for i := range 100 {
		key := fmt.Sprintf("%s/ns/lost%d", cmRoot, i)
		if err := cm.Create(in("c1"), key, configMap("ns", fmt.Sprint("lost", i), ""), nil, 0); err == nil {
			t.Fatal("the writer learned of its commit")
		}
		if err := cm.Get(in("c1"), key, storage.GetOptions{}, &corev1.ConfigMap{}); err != nil {
			t.Fatal(err)
		}
		if n := list(); n != 2 {
			t.Fatalf("round %d: after a get of two objects a list has %d", i, n)
		}
		err := cm.Delete(in("c1"), key, &corev1.ConfigMap{}, nil, func(context.Context, runtime.Object) error { return nil }, nil, storage.DeleteOptions{})
		if err == nil {
			t.Fatal("the deleter learned of its commit")
		}
		if err := cm.Get(in("c1"), key, storage.GetOptions{}, &corev1.ConfigMap{}); !storage.IsNotFound(err) && !apierrors.IsNotFound(err) {
			t.Fatalf("a get of what was deleted: %v", err)
		}
		if n := list(); n != 1 {
			t.Fatalf("round %d: after a deletion was seen a list has %d objects", i, n)
		}
	}
}
