package watchcache

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/etcdtest"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/storetest"
)

// Stores with different prefixes on one etcd are independent.
func TestPrefixesAreApart(t *testing.T) {
	servers := etcdtest.Start(t, etcdtest.Options{}).Servers()
	for i, prefix := range []string{"", "/other", "/other2", "/elsewhere"} {
		s := serve(t, store.Options{Dir: t.TempDir(), Version: "1.36", Prefix: prefix, Etcd: etcd.Config{Servers: servers}})
		t.Cleanup(s.Close)
		cm := configMapsOf(t, s)
		storetest.StartFeeds(t, s)
		if n := s.Feed().Ledger().Clusters(); n != 0 {
			t.Errorf("%q: at first there are %d clusters", prefix, n)
		}
		create(t, s, "c1")
		if err := cm.Create(in("c1"), cmRoot+"/ns/x", configMap("ns", "x", prefix), nil, 0); err != nil {
			t.Errorf("%q, number %d: %v", prefix, i, err)
		}
		var list corev1.ConfigMapList
		if err := cm.GetList(in("c1"), cmRoot, everything(""), &list); err != nil || len(list.Items) != 1 || list.Items[0].Data["v"] != prefix {
			t.Errorf("%q: %v, %v", prefix, list.Items, err)
		}
	}
}

// ForceNewCluster starts a new etcd from the files of one member of a lost cluster.
func TestForceNewCluster(t *testing.T) {
	members, all := several(t, 1, etcdtest.Options{Members: 3, Steady: true})
	cm := configMapsOf(t, all[0])
	storetest.StartFeeds(t, all...)
	create(t, all[0], "c1")
	const objects = 20
	for i := range objects {
		name := fmt.Sprint("x", i)
		if err := cm.Create(in("c1"), cmRoot+"/ns/"+name, configMap("ns", name, ""), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	all[0].Close()
	members.Kill()
	s := serve(t, store.Options{
		Dir: t.TempDir(), Version: "1.36", NoSync: true, Etcd: etcd.Config{Dir: members.Members[0].Backup(), ForceNewCluster: true},
	})
	t.Cleanup(s.Close)
	cm = configMapsOf(t, s)
	storetest.StartFeeds(t, s)
	var list corev1.ConfigMapList
	if err := cm.GetList(in("c1"), cmRoot, everything(""), &list); err != nil || len(list.Items) < objects-1 { // a follower may lack the last write
		t.Errorf("%d objects, %v", len(list.Items), err)
	}
	if err := cm.Create(in("c1"), cmRoot+"/ns/more", configMap("ns", "more", ""), nil, 0); err != nil {
		t.Errorf("a write: %v", err)
	}
}

// Without a leader, writes and consistent lists fail and no data is lost. They succeed again
// once there is a leader.
func TestLeaderless(t *testing.T) {
	t.Parallel() // it mostly waits
	members, all := several(t, 1, etcdtest.Options{Members: 3})
	s := all[0]
	cm := configMapsOf(t, s)
	storetest.StartFeeds(t, s)
	create(t, s, "c1")
	if err := cm.Create(in("c1"), cmRoot+"/ns/before", configMap("ns", "before", ""), nil, 0); err != nil {
		t.Fatal(err)
	}
	for _, m := range members.Members[1:] {
		m.Kill()
	}
	if err := cm.Create(in("c1"), cmRoot+"/ns/lost", configMap("ns", "lost", ""), nil, 0); !retriable(err) {
		t.Errorf("create: %v", err)
	}
	if err := cm.GetList(in("c1"), cmRoot, everything(""), &corev1.ConfigMapList{}); !retriable(err) {
		t.Errorf("list: %v", err)
	}
	// The remaining member serves reads that accept old data.
	old := storage.ListOptions{ResourceVersion: "0", Recursive: true, Predicate: storage.Everything}
	var list corev1.ConfigMapList
	if err := cm.GetList(in("c1"), cmRoot, old, &list); err != nil || len(list.Items) != 1 {
		t.Errorf("a list of any age: %d, %v", len(list.Items), err)
	}
	for _, m := range members.Members[1:] {
		m.Start()
	}
	reconnected(t, s)
	if err := cm.Create(in("c1"), cmRoot+"/ns/after", configMap("ns", "after", ""), nil, 0); err != nil {
		t.Errorf("with a leader: %v", err)
	}
	err := cm.Create(in("c1"), cmRoot+"/ns/lost", configMap("ns", "lost", ""), nil, 0) // the write may have succeeded
	if err != nil && !storage.IsExist(err) && !apierrors.IsAlreadyExists(err) {
		t.Errorf("once more: %v", err)
	}
}
