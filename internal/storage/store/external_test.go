package store

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/etcdtest"
)

func outside(t *testing.T, e etcd.Config) *Store {
	t.Helper()
	s, err := Open(t.Context(), Options{Dir: t.TempDir(), Version: "1.36", Etcd: e})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Two processes on an external etcd see each other's writes.
func TestOutside(t *testing.T) {
	members := etcdtest.Start(t, etcdtest.Options{})
	a, b := outside(t, etcd.Config{Servers: members.Servers()}), outside(t, etcd.Config{Servers: members.Servers()})
	inA, inB := configMapsOf(t, a), configMapsOf(t, b)
	for _, s := range []*Store{a, b} {
		if err := s.Feed().Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	create(t, a, "c1")
	if err := inA.Create(in("c1"), cmRoot+"/ns/x", configMap("ns", "x", "1"), nil, 0); err != nil {
		t.Fatal(err)
	}
	var got corev1.ConfigMap
	if err := inB.Get(in("c1"), cmRoot+"/ns/x", storage.GetOptions{}, &got); err != nil || got.Data["v"] != "1" {
		t.Errorf("got %v, %v", got, err)
	}
}
