package watchcache

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/storetest"
)

// Objects with the same expiry expire in one revision, and every watch gets all events.
// Cached resources cannot expire.
func TestExpiry(t *testing.T) {
	s, cached, stop := open(t, t.TempDir())
	defer stop()
	events := storageOf(t, s.Natives(jsonConfig, configMaps), configMaps, storetest.EmptyConfigMap, storetest.EmptyConfigMaps)
	if err := cached.Create(in("c1"), cmRoot+"/ns/x", configMap("ns", "x", ""), nil, 100); err == nil || !strings.Contains(err.Error(), "expire") {
		t.Errorf("an object that a cache holds may expire: %v", err)
	}
	create(t, s, "c1", "c2")
	const each = 30
	first := fmt.Sprint(s.Latest())
	own, err := events.Watch(in("c1"), cmRoot, everything(first))
	if err != nil {
		t.Fatal(err)
	}
	defer own.Stop()
	all, err := events.Watch(in(cluster.All), cmRoot, everything(first))
	if err != nil {
		t.Fatal(err)
	}
	defer all.Stop()
	for i := range each {
		for _, c := range []cluster.Name{"c1", "c2"} {
			name := fmt.Sprint("e", i)
			if err := events.Create(in(c), cmRoot+"/ns/"+name, configMap("ns", name, ""), nil, 1000); err != nil {
				t.Fatal(err)
			}
		}
	}
	leases, err := s.RawClient().Leases(t.Context())
	if err != nil || len(leases.Leases) == 0 {
		t.Fatal(leases, err)
	}
	for _, l := range leases.Leases { // what etcd does when a lease expires
		if _, err := s.RawClient().Revoke(t.Context(), l.ID); err != nil {
			t.Fatal(err)
		}
	}
	for range each {
		expectType(t, next(t, own).Type, "ADDED")
	}
	for range 2 * each {
		expectType(t, next(t, all).Type, "ADDED")
	}
	for range each {
		expectType(t, next(t, own).Type, "DELETED")
	}
	for range 2 * each {
		expectType(t, next(t, all).Type, "DELETED")
	}
	var left corev1.ConfigMapList
	if err := events.GetList(in(cluster.All), cmRoot, everything(""), &left); err != nil || len(left.Items) != 0 {
		t.Errorf("%d are left, %v", len(left.Items), err)
	}
}

func expectType[T ~string](t *testing.T, got T, want string) {
	t.Helper()
	if string(got) != want {
		t.Fatalf("event: got %s, want %s", got, want)
	}
}
