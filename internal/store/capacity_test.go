package store

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
)

// A database that is nearly full refuses tenants' writes, but not the server's own,
// and nobody's deletions; when there is room again, so can tenants.
func TestNearlyFull(t *testing.T) {
	s, cm, stop := open(t, t.TempDir())
	defer stop()
	create(t, s, "c1", cluster.Admin)
	key := func(name string) string { return cmRoot + "/default/" + name }
	if err := cm.Create(in("c1"), key("old"), configMap("default", "old", ""), nil, 0); err != nil {
		t.Fatal(err)
	}
	var used int64 = 81
	s.guard.capacity = newCapacity(func() int64 { return used }, 100)
	err := cm.Create(in("c1"), key("new"), configMap("default", "new", ""), nil, 0)
	if code := status(err); code != 507 {
		t.Errorf("a tenant's write is answered %d: %v", code, err)
	}
	_, err = s.Commit(t.Context(), []Write{{Resource: NativeResource(configMaps), Cluster: "c1", Object: configMap("default", "new", "")}})
	if code := status(err); code != 507 {
		t.Errorf("a tenant's part of a transaction is answered %d: %v", code, err)
	}
	if err := cm.Create(in(cluster.Admin), key("new"), configMap("default", "new", ""), nil, 0); err != nil {
		t.Errorf("the server's own write: %v", err)
	}
	if err := cm.Delete(in("c1"), key("old"), &corev1.ConfigMap{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Errorf("a deletion: %v", err)
	}
	used = 10
	if err := cm.Create(in("c1"), key("new"), configMap("default", "new", ""), nil, 0); err != nil {
		t.Errorf("when there is room again: %v", err)
	}
}

func status(err error) int32 {
	if s, ok := err.(apierrors.APIStatus); ok { //nolint:errorlint // as clients get it
		return s.Status().Code
	}
	return 0
}

// The store knows how full its database is.
func TestUsed(t *testing.T) {
	s, cm, stop := open(t, t.TempDir())
	defer stop()
	create(t, s, "c1")
	before := s.guard.capacity.used()
	for i := range 100 {
		name := fmt.Sprint("m", i)
		if err := cm.Create(in("c1"), cmRoot+"/default/"+name, configMap("default", name, string(make([]byte, 10_000))), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	if s.guard.capacity.quota.Load() != quotaBytes || before <= 0 {
		t.Errorf("quota %d, used %d", s.guard.capacity.quota.Load(), before)
	}
	for s.guard.capacity.used() < before+1_000_000 { // etcd writes its database in batches, a tenth of a second apart
		if _, err := s.RawClient().Get(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDue(t *testing.T) {
	now := time.Unix(1000, 0)
	points := []point{{now.Add(-2 * time.Minute), 5}, {now.Add(-61 * time.Second), 7}, {now.Add(-59 * time.Second), 9}}
	if rev, rest := due(points, now); rev != 7 || len(rest) != 1 || rest[0].rev != 9 {
		t.Errorf("due %d, rest %v", rev, rest)
	}
	if rev, rest := due(nil, now); rev != 0 || len(rest) != 0 {
		t.Errorf("due %d, rest %v of nothing", rev, rest)
	}
}
