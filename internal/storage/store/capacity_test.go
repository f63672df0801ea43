package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/etcd/embedded"
	"github.com/unforked/kcp/internal/storage/etcd/space"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/storetest"
)

// A nearly full database refuses writes of tenants. It accepts deletions and the server's own
// writes. Once there is space, it accepts writes of tenants again.
func TestNearlyFull(t *testing.T) {
	s, cm, stop := open(t, t.TempDir())
	defer stop()
	create(t, s, "c1", cluster.Admin)
	key := func(name string) string { return cmRoot + "/default/" + name }
	if err := cm.Create(in("c1"), key("old"), configMap("default", "old", ""), nil, 0); err != nil {
		t.Fatal(err)
	}
	var used int64 = 81
	s.guard.capacity = space.New(func() int64 { return used }, 100)
	err := cm.Create(in("c1"), key("new"), configMap("default", "new", ""), nil, 0)
	if code := storetest.Status(err); code != 507 {
		t.Errorf("a tenant's write is answered %d: %v", code, err)
	}
	_, err = s.Commit(t.Context(), []Write{{Resource: keys.NativeResource(configMaps), Cluster: "c1", Object: configMap("default", "new", "")}})
	if code := storetest.Status(err); code != 507 {
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

// Near the quota, requests that delete can still change objects. Other changes of tenants are
// limited, so that they cannot use up the space for deletions.
func TestChangesWhileNearlyFull(t *testing.T) {
	s, cm, stop := open(t, t.TempDir())
	defer stop()
	create(t, s, "c1")
	if err := cm.Create(in("c1"), cmRoot+"/default/it", configMap("default", "it", ""), nil, 0); err != nil {
		t.Fatal(err)
	}
	as := func(verb string, groups ...string) context.Context {
		ctx := request.WithUser(in("c1"), &user.DefaultInfo{Name: "alice", Groups: groups})
		return request.WithRequestInfo(ctx, &request.RequestInfo{IsResourceRequest: true, Verb: verb})
	}
	change := func(ctx context.Context, value string) int32 {
		err := cm.GuaranteedUpdate(ctx, cmRoot+"/default/it", &corev1.ConfigMap{}, false, nil, storage.SimpleUpdate(func(o runtime.Object) (runtime.Object, error) {
			out := o.DeepCopyObject().(*corev1.ConfigMap)
			out.Data = map[string]string{"value": value}
			return out, nil
		}), nil)
		return storetest.Status(err)
	}
	var used int64
	s.guard.capacity = space.New(func() int64 { return used }, 100<<20)
	large := strings.Repeat("x", 100<<10)
	for _, tt := range []struct {
		percent int64
		ctx     context.Context
		value   string
		want    int32
	}{
		{79, as("update"), large, 0},
		{81, as("update"), "a", 0},
		{81, as("update"), large, 429},
		{81, as("delete"), large + "b", 0},
		{81, as("patch", "system:masters"), large + "c", 0}, // such as the server's loops
		{91, as("update"), "d", 507},
		{91, as("deletecollection"), "e", 0},
		{91, as("patch", "system:masters"), "f", 0},
		{91, in("c1"), "g", 0}, // the server itself, without a request
		{96, as("delete"), "h", 507},
		{96, as("patch", "system:masters"), "h", 507},
	} {
		used = tt.percent << 20
		if got := change(tt.ctx, tt.value); got != tt.want {
			info, _ := request.RequestInfoFrom(tt.ctx)
			t.Errorf("at %d%%, %d bytes by %+v: %d, want %d", tt.percent, len(tt.value), info, got, tt.want)
		}
	}
}

// An embedded etcd that has grown to its quota accepts writes again after deletions and
// compaction, both while it runs and after a restart.
func TestFullComesBack(t *testing.T) {
	dir := t.TempDir()
	start := func() *Store {
		t.Helper()
		s, err := Open(t.Context(), Options{Dir: dir, Version: "1.36", NoSync: true, Etcd: etcd.Config{QuotaBackendBytes: 16 << 20}})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Feed().Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		return s
	}
	large := strings.Repeat("x", 500_000)
	fill := func(s *Store) {
		t.Helper()
		var err error
		for i := 0; err == nil && i < 1000; i++ { // etcd learns its size when it commits, ten times a second
			_, err = s.RawClient().Put(t.Context(), fmt.Sprint("/elsewhere/", i), large)
		}
		if !errors.Is(err, rpctypes.ErrNoSpace) {
			t.Fatalf("it gets full: %v", err)
		}
	}
	empty := func(s *Store) (newest int64) {
		t.Helper()
		r, err := s.RawClient().Delete(t.Context(), "/elsewhere/", clientv3.WithPrefix())
		if err != nil || r.Deleted == 0 {
			t.Fatalf("deleting in a full database: %v, %v", r, err)
		}
		return r.Header.Revision
	}
	write := func(s *Store) error {
		_, err := s.Commit(t.Context(), nil, Fence{Cluster: cluster.NewName(), State: Active})
		return err
	}
	s := start()
	fill(s)
	if err := write(s); storetest.Status(err) != 507 {
		t.Errorf("when it is full: %v", err)
	}
	if _, err := s.RawClient().Compact(t.Context(), empty(s)); err != nil { // what the compactor does a minute later
		t.Fatal(err)
	}
	comesBack := func(s *Store) {
		t.Helper()
		for err := write(s); err != nil; err = write(s) {
			if storetest.Status(err) != 507 {
				t.Fatal(err)
			}
		}
	}
	comesBack(s)
	fill(s)
	empty(s)
	s.Close()
	s = start()
	if err := write(s); err != nil {
		t.Errorf("when it is started again: %v", err)
	}
	// A database that is full of live data starts, so that data can be deleted.
	fill(s)
	s.Close()
	s = start()
	if err := write(s); err != nil && storetest.Status(err) != 507 { // a small write may succeed, because the start defragments the file
		t.Errorf("when it is started and full: %v", err)
	}
	empty(s)
	s.Close()
	s = start()
	defer s.Close()
	comesBack(s) // the start defragmented the file, so it may reach its quota only now
}

// Used returns the bytes in use of the database.
func TestUsed(t *testing.T) {
	s, cm, stop := open(t, t.TempDir())
	defer stop()
	create(t, s, "c1")
	before := s.guard.capacity.Used()
	for i := range 100 {
		name := fmt.Sprint("m", i)
		if err := cm.Create(in("c1"), cmRoot+"/default/"+name, configMap("default", name, string(make([]byte, 10_000))), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	if s.guard.capacity.Quota() != embedded.QuotaBytes || before <= 0 {
		t.Errorf("quota %d, used %d", s.guard.capacity.Quota(), before)
	}
	for s.guard.capacity.Used() < before+1_000_000 { // etcd commits to its database in batches, every 100 ms
		if _, err := s.RawClient().Get(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
	}
}
