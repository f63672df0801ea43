package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/storage/etcdtest"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/storetest"
	"github.com/unforked/kcp/internal/storage/values"
)

// guarded returns two stores on one etcd that guard namespaces. Only the second store follows
// changes. The first knows only the state when it was opened.
func guarded(t *testing.T, prepare func(*Store)) (stale *Store, cm, things storage.Interface, other *Store) {
	t.Helper()
	_, all := several(t, 2, etcdtest.Options{})
	for i, s := range []*Store{all[1], all[0]} {
		s.GuardNamespaces()
		s.Values().Register(namespaces(), values.Codec{Codec: storetest.JSON()})
		if cm, things = configMapsOf(t, s), widgetsOf(t, s); i == 0 {
			storetest.StartFeeds(t, s)
			prepare(s)
		} else {
			storetest.StartFeeds(t, s)
			s.feed.Stop()
		}
	}
	return all[0], cm, things, all[1]
}

// setNamespace writes a namespace, or deletes it if o is nil.
func setNamespace(t *testing.T, s *Store, name string, o *corev1.Namespace) {
	t.Helper()
	_, rev, err := s.Read(t.Context(), namespaceKey("c1", name))
	if err != nil {
		t.Fatal(err)
	}
	w := Write{Resource: namespaces(), Cluster: "c1", Object: o, Expect: rev}
	if o == nil {
		w.Object, w.Delete = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, true
	}
	if _, err := s.Commit(t.Context(), []Write{w}); err != nil {
		t.Fatal(err)
	}
}

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// A process with outdated data creates nothing in a namespace whose deletion another process
// has started, neither in requests nor in its own transactions.
func TestNothingIsCreatedInDeletedNamespaces(t *testing.T) {
	stale, cm, things, other := guarded(t, func(s *Store) {
		create(t, s, "c1")
		setNamespace(t, s, "ns", namespace("ns"))
	})
	n := 0
	attempt := func(state string, as func(error) bool) {
		t.Helper()
		n++
		name := fmt.Sprint("o", n)
		_, commit := stale.Commit(t.Context(), []Write{
			{Resource: keys.NativeResource(configMaps), Cluster: "c1", Object: configMap("ns", name+"-commit", "")},
			{Resource: keys.CustomResource(widgets, ""), Cluster: "c1", Object: widget("ns", name+"-commit", "")},
		})
		for by, err := range map[string]error{
			"request":     cm.Create(in("c1"), cmRoot+"/ns/"+name, configMap("ns", name, ""), nil, 0),
			"custom":      things.Create(in("c1"), storetest.WidgetsRoot+"/ns/"+name, widget("ns", name, ""), nil, 0),
			"transaction": commit,
		} {
			if !as(err) {
				t.Errorf("in a namespace that %s, by %s: %v", state, by, err)
			}
			if ended := err != nil; ended != IsNamespaceEnded(err) {
				t.Errorf("IsNamespaceEnded(%v) is %t", err, !ended)
			}
		}
	}
	made := func(err error) bool { return err == nil }
	attempt("exists", made)
	labelled := namespace("ns")
	labelled.Labels = map[string]string{"a": "b"}
	setNamespace(t, other, "ns", labelled)
	attempt("was labelled elsewhere", made)
	ending := namespace("ns")
	ending.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	setNamespace(t, other, "ns", ending)
	attempt("is being deleted", func(err error) bool {
		return apierrors.IsForbidden(err) && apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
	})
	// Existing objects can be changed until the namespace is deleted.
	_, rev, err := other.Read(t.Context(), keys.NativeResource(configMaps).Key("c1", "ns", "o1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stale.Commit(t.Context(), []Write{{Resource: keys.NativeResource(configMaps), Cluster: "c1", Object: configMap("ns", "o1", "changed"), Expect: rev}}); err != nil {
		t.Errorf("an update in a namespace that is being deleted: %v", err)
	}
	setNamespace(t, other, "ns", nil)
	attempt("is gone", apierrors.IsNotFound)
	setNamespace(t, other, "ns", namespace("ns"))
	attempt("was created again", made)
}

// A transaction can create a namespace together with its content.
func TestNamespaceWithItsContent(t *testing.T) {
	stale, _, _, _ := guarded(t, func(s *Store) { create(t, s, "c1") })
	writes := []Write{
		{Resource: keys.NativeResource(configMaps), Cluster: "c1", Object: configMap("new", "x", "")},
		{Resource: namespaces(), Cluster: "c1", Object: namespace("new")},
	}
	if _, err := stale.Commit(t.Context(), writes); err != nil {
		t.Fatal(err)
	}
	if _, err := stale.Commit(t.Context(), writes); !storage.IsExist(err) {
		t.Errorf("once more: %v", err)
	}
	writes[0].Object = configMap("none", "x", "")
	if _, err := stale.Commit(t.Context(), writes[:1]); !apierrors.IsNotFound(err) {
		t.Errorf("in a namespace that does not exist: %v", err)
	}
}

// A create needs one round trip while this process knows the current namespace.
func TestGuardOfNamespacesReadsNothing(t *testing.T) {
	stale, cm, _, _ := guarded(t, func(s *Store) {
		create(t, s, "c1")
		setNamespace(t, s, "ns", namespace("ns"))
	})
	counted := &countedKV{KV: stale.RawClient().KV}
	stale.RawClient().KV = counted
	for i := range 10 {
		name := fmt.Sprint("o", i)
		if err := cm.Create(in("c1"), cmRoot+"/ns/"+name, configMap("ns", name, ""), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	if counted.txns != 10 || counted.gets != 0 {
		t.Errorf("%d transactions and %d reads for 10 creates", counted.txns, counted.gets)
	}
}

// countedKV counts requests to etcd.
type countedKV struct {
	clientv3.KV
	txns, gets int
}

func (c *countedKV) Txn(ctx context.Context) clientv3.Txn {
	c.txns++
	return c.KV.Txn(ctx)
}

func (c *countedKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	c.gets++
	return c.KV.Get(ctx, key, opts...)
}
