package server_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/storage/backup"
	"github.com/unforked/kcp/internal/storage/etcdtest"
	"github.com/unforked/kcp/internal/storage/store"
)

// fetchBackup requests a backup, and returns the status of the response and its body.
func fetchBackup(t *testing.T, s *server.Server, path string, u user.Info) (int, []byte) {
	t.Helper()
	client := &http.Client{Transport: s.InProcess("root", u).Transport}
	resp := must(client.Do(must(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://kcp"+path, nil))(t)))(t)
	body := must(io.ReadAll(resp.Body))(t)
	_ = resp.Body.Close()
	return resp.StatusCode, body
}

// restoredIn restores a backup into a new root directory.
func restoredIn(t *testing.T, saved []byte) (dir string) {
	t.Helper()
	dir = t.TempDir()
	r := must(backup.NewReader(bytes.NewReader(saved)))(t)
	must(r.Restore(t.Context(), backup.Target{Dir: filepath.Join(dir, "etcd-server")}))(t)
	return dir
}

// rawAt returns all keys of a store with values and revisions, as they were at a revision.
func rawAt(t *testing.T, s *store.Store, revision int64) map[string]string {
	t.Helper()
	all := map[string]string{}
	got := must(s.RawClient().Get(t.Context(), s.Prefix()+"/", clientv3.WithPrefix(), clientv3.WithRev(revision)))(t)
	for _, kv := range got.Kvs {
		all[strings.TrimPrefix(string(kv.Key), s.Prefix())] = fmt.Sprintf("%d %d %d %x", kv.CreateRevision, kv.ModRevision, kv.Version, kv.Value)
	}
	return all
}

// writers change config maps in pairs until the returned function is called.
func writers(t *testing.T, s *server.Server, at string, written *atomic.Int64) (stop func()) {
	t.Helper()
	kube := must(kubernetes.NewForConfig(s.InProcess(at, server.System())))(t)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				for _, half := range []string{"a", "b"} {
					o := named(fmt.Sprintf("w%d-%d-%s", w, i, half))
					if _, err := kube.CoreV1().ConfigMaps("default").Create(ctx, o, metav1.CreateOptions{}); err != nil && ctx.Err() == nil {
						t.Errorf("a writer is answered %v", err)
						return
					}
				}
				if i >= 10 {
					name := fmt.Sprintf("w%d-%d-a", w, i-10)
					if err := kube.CoreV1().ConfigMaps("default").Delete(ctx, name, metav1.DeleteOptions{}); err != nil && ctx.Err() == nil {
						t.Errorf("a writer is answered %v", err)
						return
					}
				}
				written.Add(1)
			}
		})
	}
	return func() { cancel(); all.Wait() }
}

// fill makes objects of several kinds: with a status, an owner, a definition and a finalizer.
func fillForBackup(t *testing.T, s *running) (team *tenant, d *definition) {
	t.Helper()
	team = at(t, s, cluster.Root, server.System()).workspace("team")
	team.workspace("below")
	d = team.newKind(crd(t, "things"))
	team.instance(d, "one")
	owner := team.configMap("owner")
	team.configMap("owned", metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.UID})
	return team, d
}

// A backup of a server that many clients write to has exactly the objects of one revision. The
// restored server has another URL, and the same objects with the same UIDs, owners, status and
// resource versions. Its own resource versions are higher than any before.
func TestBackupUnderLoad(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir())
	team, d := fillForBackup(t, s)
	var written atomic.Int64
	stop := writers(t, s.Server, string(team.name), &written)
	eventually(t, "the writers have written", func() bool { return written.Load() > 100 })
	status, saved := fetchBackup(t, s.Server, "/backup", server.System())
	if status != http.StatusOK {
		t.Fatalf("%d: %s", status, saved)
	}
	before := written.Load()
	eventually(t, "the writers go on", func() bool { return written.Load() > before+20 })
	stop()
	header := must(backup.NewReader(bytes.NewReader(saved)))(t).Header
	want := rawAt(t, s.Store(), header.Revision)
	last := must(team.kube.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}))(t).ResourceVersion
	things := must(team.of(d).List(t.Context(), metav1.ListOptions{}))(t)
	s.Close()

	dir := restoredIn(t, saved)
	checkRestored(t, dir, want)
	again := must(server.New(t.Context(), server.Config{Dir: dir, NoSync: true, ExternalURL: "https://other.example.com"}))(t)
	defer again.Close()
	now := at(t, &running{Server: again}, team.name, server.System())
	restored := must(now.of(d).List(t.Context(), metav1.ListOptions{}))(t)
	if diff := cmp.Diff(things.Items, restored.Items); diff != "" {
		t.Errorf("the custom resources are others: %s", diff)
	}
	root := at(t, &running{Server: again}, cluster.Root, server.System())
	eventually(t, "the workspace has the other URL", func() bool {
		ws := must(root.any.Resource(workspaces).Get(t.Context(), "team", metav1.GetOptions{}))(t)
		return strings.HasPrefix(text(ws, "spec", "URL"), "https://other.example.com/") && clusterOf(ws) == team.name
	})
	if made := now.configMap("later"); !newer(t, made.ResourceVersion, last) {
		t.Errorf("an object has the resource version %s, but the server of the backup has reached %s", made.ResourceVersion, last)
	}
	now.workspace("more")
	checkOldWatch(t, now, last)
}

// newer reports whether a resource version is higher than another.
func newer(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y int64
	must(fmt.Sscan(a+" "+b, &x, &y))(t)
	return x > y
}

// checkRestored compares what is stored in a root directory with what was in the original.
func checkRestored(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	opened := must(store.Open(t.Context(), store.Options{Dir: dir, NoSync: true, Version: "1.36"}))(t)
	defer opened.Close()
	if diff := cmp.Diff(want, rawAt(t, opened, 0)); diff != "" {
		t.Errorf("the restored keys are others: %s", diff)
	}
}

// checkOldWatch watches at a resource version of the server before the restore.
func checkOldWatch(t *testing.T, c *tenant, version string) {
	t.Helper()
	w, err := c.kube.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
	if err == nil {
		event := <-w.ResultChan()
		w.Stop()
		if event.Type != watch.Error {
			t.Fatalf("a watch at an old resource version gets %v", event)
		}
		err = apierrors.FromObject(event.Object)
	}
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("a watch at an old resource version gets %v", err)
	}
}

// Only members of system:masters get a backup.
func TestBackupIsForMasters(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	alice := &user.DefaultInfo{Name: "alice", Groups: []string{user.AllAuthenticated}}
	admin := &user.DefaultInfo{Name: "kcp-admin", Groups: []string{"system:kcp:admin", user.AllAuthenticated}}
	for name, u := range map[string]user.Info{"alice": alice, "admin": admin, "anonymous": &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}} {
		if status, body := fetchBackup(t, c.server.Server, "/backup", u); status != http.StatusForbidden && status != http.StatusUnauthorized {
			t.Errorf("%s: %d, %d bytes", name, status, len(body))
		}
	}
	if status, _ := fetchBackup(t, c.server.Server, c.path("/backup"), server.System()); status != http.StatusNotFound {
		t.Errorf("in a cluster: %d", status)
	}
	if status, body := fetchBackup(t, c.server.Server, "/backup", server.System()); status != http.StatusOK || !bytes.HasPrefix(body, []byte("kcp-backup ")) {
		t.Errorf("masters: %d", status)
	}
}

// Only members of system:masters defragment the database. Objects stay.
func TestDefragment(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.configMap("kept")
	post := func(u user.Info, path string) (int, string) {
		t.Helper()
		client := &http.Client{Transport: c.server.InProcess("root", u).Transport}
		resp := must(client.Post("http://kcp"+path, "", nil))(t)
		body := must(io.ReadAll(resp.Body))(t)
		_ = resp.Body.Close()
		return resp.StatusCode, string(body)
	}
	if status, body := post(&user.DefaultInfo{Name: "kcp-admin", Groups: []string{"system:kcp:admin", user.AllAuthenticated}}, "/defragment"); status != http.StatusForbidden {
		t.Errorf("an administrator of workspaces: %d %s", status, body)
	}
	if status, body := post(server.System(), c.path("/defragment")); status != http.StatusNotFound {
		t.Errorf("in a cluster: %d %s", status, body)
	}
	if status, body := post(server.System(), "/backup"); status != http.StatusMethodNotAllowed {
		t.Errorf("a backup by POST: %d %s", status, body)
	}
	if status, body := post(server.System(), "/defragment"); status != http.StatusOK || !strings.Contains(body, `"member":"embedded"`) {
		t.Errorf("masters: %d %s", status, body)
	}
	if _, err := c.kube.CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	c.configMap("later")
}

// A backup of servers on an external etcd is restored into a server with an embedded one.
func TestBackupOfExternal(t *testing.T) {
	e := startEquals(t, 2, etcdtest.Options{})
	c := e.workspace(e.all[0], "root", "team")
	e.ok(configMapIn(e.kube(e.all[1], string(c), server.System()), "default", "x"))
	ctx := t.Context()
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "default"}, InvolvedObject: corev1.ObjectReference{Namespace: "default", Name: "x"}}
	must(e.kube(e.all[0], string(c), server.System()).CoreV1().Events("default").Create(ctx, event, metav1.CreateOptions{}))(t)
	want := must(e.kube(e.all[0], string(c), server.System()).CoreV1().ConfigMaps("default").Get(ctx, "x", metav1.GetOptions{}))(t)
	_, saved := fetchBackup(t, e.all[1], "/backup", server.System())
	s := start(t, restoredIn(t, saved))
	defer s.Close()
	got := must(e.kube(s.Server, string(c), server.System()).CoreV1().ConfigMaps("default").Get(ctx, "x", metav1.GetOptions{}))(t)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	key := s.Store().Prefix() + "/n/core/events/-/" + string(c) + "/default/e"
	kv := must(s.Store().RawClient().Get(ctx, key))(t)
	if len(kv.Kvs) != 1 {
		t.Fatal("the event is missing")
	}
	left := must(s.Store().RawClient().TimeToLive(ctx, clientv3.LeaseID(kv.Kvs[0].Lease), clientv3.WithAttachedKeys()))(t)
	if left.TTL <= 0 || len(left.Keys) != 1 || string(left.Keys[0]) != key {
		t.Errorf("the event has the lease %+v", left)
	}
	e.ok(configMapIn(e.kube(s.Server, string(c), server.System()), "default", "y"))
}
