package watchcache

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/storage/etcd"
	"github.com/unforked/kcp/internal/storage/etcd/outage"
	"github.com/unforked/kcp/internal/storage/etcdtest"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/storage/storetest"
)

// retriable reports whether err tells clients to retry.
func retriable(err error) bool {
	return apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err)
}

// A server that hangs, follower or leader, delays requests but loses no data. Other servers
// answer, or clients get errors to retry.
func TestServerHangs(t *testing.T) {
	t.Parallel() // it mostly waits
	members, all := several(t, 1, etcdtest.Options{Members: 3})
	s := all[0]
	cm := configMapsOf(t, s)
	storetest.StartFeeds(t, s)
	create(t, s, "c1")
	acknowledged, n := map[string]bool{}, 0
	write := func() error {
		n++
		name := fmt.Sprint("x", n)
		ctx, cancel := context.WithTimeout(in("c1"), storetest.Patience)
		defer cancel()
		err := cm.Create(ctx, cmRoot+"/ns/"+name, configMap("ns", name, ""), nil, 0)
		if err == nil {
			acknowledged[name] = true
		} else if !retriable(err) {
			t.Errorf("write %d: %v", n, err)
		}
		return err
	}
	hang := members.Members // one of them is the leader
	if !storetest.Nightly() {
		hang = slices.Clone(hang)
		rand.Shuffle(len(hang), func(i, j int) { hang[i], hang[j] = hang[j], hang[i] })
		hang = hang[:1]
	}
	for i, m := range hang {
		m.Hang()
		for good := 0; good < 5; {
			if write() == nil {
				good++
			}
		}
		m.Resume()
		var list corev1.ConfigMapList
		if err := cm.GetList(in("c1"), cmRoot, everything(""), &list); err != nil {
			t.Fatalf("list after member %d hung: %v", i, err)
		}
		found := map[string]bool{}
		for _, o := range list.Items {
			found[o.Name] = true
		}
		for name := range acknowledged {
			if !found[name] {
				t.Errorf("%s was acknowledged, and is gone after member %d hung", name, i)
			}
		}
	}
}

// Without etcd, requests fail within a time limit and watches wait. Once etcd is back, both
// continue without a gap.
func TestEtcdAway(t *testing.T) {
	members, all := several(t, 2, etcdtest.Options{})
	var configs []storage.Interface
	for _, s := range all {
		configs = append(configs, configMapsOf(t, s))
	}
	storetest.StartFeeds(t, all...)
	create(t, all[0], "c1")
	w, err := configs[1].Watch(in("c1"), cmRoot, everything("0"))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := configs[0].Create(in("c1"), cmRoot+"/ns/before", configMap("ns", "before", ""), nil, 0); err != nil {
		t.Fatal(err)
	}
	members.Kill()
	if err := configs[0].Create(in("c1"), cmRoot+"/ns/lost", configMap("ns", "lost", ""), nil, 0); !retriable(err) {
		t.Errorf("create: %v", err)
	}
	if err := configs[0].Get(in("c1"), cmRoot+"/ns/before", storage.GetOptions{}, &corev1.ConfigMap{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("get: %v", err)
	}
	if err := configs[0].GetList(in("c1"), cmRoot, everything(""), &corev1.ConfigMapList{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("list: %v", err)
	}
	if err := all[0].Reachable(t.Context()); err == nil {
		t.Error("it says that etcd answers")
	}
	ctx := outage.WithNote(t.Context())
	if all[1].Feed().Fresh(ctx) || outage.Noted(ctx) == nil {
		t.Errorf("evidence is called fresh; outage %v", outage.Noted(ctx))
	}
	members.Start()
	for _, s := range all {
		reconnected(t, s)
	}
	if err := configs[0].Create(in("c1"), cmRoot+"/ns/after", configMap("ns", "after", ""), nil, 0); err != nil {
		t.Fatal(err)
	}
	var seen []string
	for len(seen) < 2 {
		select {
		case e := <-w.ResultChan():
			if o, ok := bare(e.Object).(*corev1.ConfigMap); ok {
				seen = append(seen, o.Name)
			} else {
				t.Fatalf("the watch got %v", e)
			}
		case <-time.After(storetest.Patience):
			t.Fatalf("the watch got %v and no more", seen)
		}
	}
	if strings.Join(seen, " ") != "before after" {
		t.Errorf("the watch got %v", seen)
	}
	if err := all[1].Feed().CatchUp(t.Context()); err != nil { // the feed may reconnect later than the cache
		t.Error(err)
	}
	if !all[1].Feed().Fresh(t.Context()) {
		t.Error("evidence is not fresh")
	}
}

// reconnected returns when the store has reconnected to etcd.
func reconnected(t *testing.T, s *served) {
	t.Helper()
	for s.Reachable(t.Context()) != nil && t.Context().Err() == nil { // reconnection attempts are seconds apart
	}
}

// A full etcd refuses writes with 507, and serves reads and deletions. After compaction and
// defragmentation it accepts writes again.
func TestFull(t *testing.T) {
	members, all := several(t, 1, etcdtest.Options{Quota: 16 << 20})
	s := all[0]
	cm := configMapsOf(t, s)
	storetest.StartFeeds(t, s)
	create(t, s, "c1")
	var err error
	big, n := strings.Repeat("x", 500_000), 0
	for ; err == nil && n < 100; n++ {
		name := fmt.Sprint("big", n)
		err = cm.Create(in("c1"), cmRoot+"/ns/"+name, configMap("ns", name, big), nil, 0)
	}
	if code := storetest.Status(err); code != 507 {
		t.Fatalf("after %d objects: %d, %v", n, code, err)
	}
	if _, err := s.RawClient().Put(t.Context(), "/elsewhere", strings.Repeat(big, 6)); err != nil {
		t.Log(err) // another program fills the remaining space
	}
	var list corev1.ConfigMapList
	if err := cm.GetList(in("c1"), cmRoot, everything(""), &list); err != nil || len(list.Items) != n-1 && len(list.Items) != n { // the write that filled the database may have succeeded
		t.Errorf("list of %d after %d writes: %v", len(list.Items), n, err)
	}
	for _, o := range list.Items {
		if err := cm.Delete(in("c1"), cmRoot+"/ns/"+o.Name, &corev1.ConfigMap{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
			t.Errorf("delete: %v", err)
		}
	}
	now, err := s.Newest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.RawClient().Compact(t.Context(), now, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RawClient().Defragment(t.Context(), members.Members[0].URL()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RawClient().AlarmDisarm(t.Context(), &clientv3.AlarmMember{}); err != nil {
		t.Fatal(err)
	}
	again := func() error {
		return cm.Create(in("c1"), cmRoot+"/ns/again", configMap("ns", "again", big), nil, 0)
	}
	for err = again(); storetest.Status(err) == 507; err = again() { // until the store notices the free space
	}
	if err != nil {
		t.Errorf("when there is room again: %v", err)
	}
}

// A store reports that its etcd was restored from a backup. The next store answers 410 to
// watches from later revisions.
func TestRestored(t *testing.T) {
	members, all := several(t, 1, etcdtest.Options{})
	s := all[0]
	cm := configMapsOf(t, s)
	storetest.StartFeeds(t, s)
	create(t, s, "c1")
	members.Kill()
	backup := members.Members[0].Backup()
	members.Start()
	reconnected(t, s)
	var last corev1.ConfigMap
	for i := range 5 {
		name := fmt.Sprint("x", i)
		if err := cm.Create(in("c1"), cmRoot+"/ns/"+name, configMap("ns", name, ""), &last, 0); err != nil {
			t.Fatal(err)
		}
	}
	members.Kill()
	members.Members[0].Restore(backup)
	members.Start()
	for list := new(corev1.ConfigMapList); t.Context().Err() == nil; {
		if err := cm.GetList(in("c1"), cmRoot, everything(""), list); err == nil {
			t.Fatal("a list from before the restore")
		}
		select {
		case err := <-s.Lost():
			if !strings.Contains(err.Error(), "restored") {
				t.Error(err)
			}
			s.Close()
			next := serve(t, store.Options{Dir: t.TempDir(), Version: "1.36", Etcd: etcd.Config{Servers: members.Servers()}})
			t.Cleanup(next.Close)
			cm := configMapsOf(t, next)
			storetest.StartFeeds(t, next)
			if _, err := cm.Watch(in("c1"), cmRoot, everything(last.ResourceVersion)); !apierrors.IsResourceExpired(err) {
				t.Errorf("a watch from the future: %v", err)
			}
			return
		default: // etcd is not running yet
		}
	}
}
