package store

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/etcdtest"
)

// History is compacted as often as was chosen, in this process and outside.
func TestCompactionInterval(t *testing.T) {
	interval := 300 * time.Millisecond // rather than five minutes
	for name, e := range map[string]Etcd{
		"in the process": {CompactionInterval: interval},
		"the shortest":   {CompactionInterval: 1},
		"outside":        {CompactionInterval: interval, Servers: etcdtest.Start(t, etcdtest.Options{}).Servers()},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Open(t.Context(), Options{Dir: t.TempDir(), Version: "1.36", NoSync: true, Etcd: e})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			begin, err := s.RawClient().Put(t.Context(), "/elsewhere", "")
			if err != nil {
				t.Fatal(err)
			}
			tick := time.NewTicker(interval / 10)
			defer tick.Stop()
			deadline := time.After(patience)
			for {
				if _, err := s.RawClient().Put(t.Context(), "/elsewhere", ""); err != nil {
					t.Fatal(err)
				}
				_, err := s.RawClient().Get(t.Context(), "/elsewhere", clientv3.WithRev(begin.Header.Revision))
				if errors.Is(err, rpctypes.ErrCompacted) {
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				select {
				case <-tick.C:
				case <-deadline:
					t.Fatal("history is not compacted")
				}
			}
		})
	}
}

// What is below one prefix has nothing to do with what is below another, in one etcd.
func TestPrefixesAreApart(t *testing.T) {
	servers := etcdtest.Start(t, etcdtest.Options{}).Servers()
	for i, prefix := range []string{"", "/other", "/other2", "/elsewhere"} {
		s, err := Open(t.Context(), Options{Dir: t.TempDir(), Version: "1.36", Prefix: prefix, Etcd: Etcd{Servers: servers}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		cm := configMapsOf(t, s)
		startSpines(t, s)
		if n := s.Spine().Ledger().Clusters(); n != 0 {
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

// The files of one member of a lost etcd are enough to go on alone, if that is chosen.
func TestForceNewCluster(t *testing.T) {
	etcd, all := several(t, 1, etcdtest.Options{Members: 3, Steady: true})
	cm := configMapsOf(t, all[0])
	startSpines(t, all...)
	create(t, all[0], "c1")
	const objects = 20
	for i := range objects {
		name := fmt.Sprint("x", i)
		if err := cm.Create(in("c1"), cmRoot+"/ns/"+name, configMap("ns", name, ""), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	all[0].Close()
	etcd.Kill()
	s, err := Open(t.Context(), Options{
		Dir: t.TempDir(), Version: "1.36", NoSync: true, Etcd: Etcd{Dir: etcd.Members[0].Backup(), ForceNewCluster: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	cm = configMapsOf(t, s)
	startSpines(t, s)
	var list corev1.ConfigMapList
	if err := cm.GetList(in("c1"), cmRoot, everything(""), &list); err != nil || len(list.Items) < objects-1 { // a follower may lack the last
		t.Errorf("%d objects, %v", len(list.Items), err)
	}
	if err := cm.Create(in("c1"), cmRoot+"/ns/more", configMap("ns", "more", ""), nil, 0); err != nil {
		t.Errorf("a write: %v", err)
	}
}

// Without a leader nothing can be written or listed, but nothing is lost either, and all
// of it goes on by itself when there is one.
func TestLeaderless(t *testing.T) {
	t.Parallel() // it mostly waits
	etcd, all := several(t, 1, etcdtest.Options{Members: 3})
	s := all[0]
	cm := configMapsOf(t, s)
	startSpines(t, s)
	create(t, s, "c1")
	if err := cm.Create(in("c1"), cmRoot+"/ns/before", configMap("ns", "before", ""), nil, 0); err != nil {
		t.Fatal(err)
	}
	for _, m := range etcd.Members[1:] {
		m.Kill()
	}
	if err := cm.Create(in("c1"), cmRoot+"/ns/lost", configMap("ns", "lost", ""), nil, 0); !outage(err) {
		t.Errorf("create: %v", err)
	}
	if err := cm.GetList(in("c1"), cmRoot, everything(""), &corev1.ConfigMapList{}); !outage(err) {
		t.Errorf("list: %v", err)
	}
	// What may be old is served by the one that is left, for who asks for that.
	old := storage.ListOptions{ResourceVersion: "0", Recursive: true, Predicate: storage.Everything}
	var list corev1.ConfigMapList
	if err := cm.GetList(in("c1"), cmRoot, old, &list); err != nil || len(list.Items) != 1 {
		t.Errorf("a list of any age: %d, %v", len(list.Items), err)
	}
	for _, m := range etcd.Members[1:] {
		m.Start()
	}
	reconnected(t, s)
	if err := cm.Create(in("c1"), cmRoot+"/ns/after", configMap("ns", "after", ""), nil, 0); err != nil {
		t.Errorf("with a leader: %v", err)
	}
	err := cm.Create(in("c1"), cmRoot+"/ns/lost", configMap("ns", "lost", ""), nil, 0) // which may have been done
	if err != nil && !storage.IsExist(err) && !apierrors.IsAlreadyExists(err) {
		t.Errorf("once more: %v", err)
	}
}
