package server_test

import (
	"net/http"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/storage/etcdtest"
)

// A server starts while etcd has its alarm for space, after all servers had stopped. It serves reads and
// deletions, refuses writes, and goes on by itself after the advice in its log was followed.
func TestStartDuringAlarm(t *testing.T) {
	t.Parallel()
	e := startEquals(t, 1, etcdtest.Options{Quota: 24 << 20})
	c := string(e.workspace(e.all[0], "root", "w"))
	e.ok(configMapIn(e.kube(e.all[0], c, server.System()), "default", "kept"))
	e.ok(configMapIn(e.kube(e.all[0], c, server.System()), "default", "dropped"))
	e.all[0].Close()
	client := must(clientv3.New(clientv3.Config{Endpoints: e.etcd.Servers()}))(t)
	defer func() { _ = client.Close() }()
	var err error
	for err == nil {
		_, err = client.Put(t.Context(), "/elsewhere/x", strings.Repeat("x", 1<<20))
	}

	s := must(e.start())(t)
	t.Cleanup(s.Close)
	maps := e.kube(s, c, server.System()).CoreV1().ConfigMaps("default")
	must(maps.Get(t.Context(), "kept", metav1.GetOptions{}))(t)
	if err := configMapIn(e.kube(s, c, server.System()), "default", "more"); apierrors.ReasonForError(err) == "" || !strings.Contains(err.Error(), "full") {
		t.Errorf("a write is answered %v", err)
	}
	e.ok(maps.Delete(t.Context(), "dropped", metav1.DeleteOptions{}))
	web := &http.Client{Transport: s.InProcess("root", server.System()).Transport}
	for _, path := range []string{"/readyz", "/readyz/etcd", "/livez"} {
		resp := must(web.Get("http://kcp" + path))(t)
		if e.ok(resp.Body.Close()); resp.StatusCode != 200 {
			t.Errorf("%s is %s", path, resp.Status)
		}
	}

	gone := must(client.Delete(t.Context(), "/elsewhere/", clientv3.WithPrefix()))(t)
	must(client.Compact(t.Context(), gone.Header.Revision, clientv3.WithCompactPhysical()))(t)
	must(s.Store().Defragment(t.Context()))(t)
	eventually(t, "writes are accepted again", func() bool {
		return configMapIn(e.kube(s, c, server.System()), "default", "more") == nil
	})
	e.ok(e.kube(s, "root", server.System()).Discovery().RESTClient().Delete().AbsPath("/apis/tenancy.kcp.io/v1alpha1/workspaces/w").Do(t.Context()).Error())
	eventually(t, "the loops delete the workspace", func() bool {
		err := e.kube(s, "root", server.System()).Discovery().RESTClient().Get().AbsPath("/apis/tenancy.kcp.io/v1alpha1/workspaces/w").Do(t.Context()).Error()
		return apierrors.IsNotFound(err)
	})
}
