package server_test

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/unforked/kcp/internal/auth/authn"
	"github.com/unforked/kcp/internal/server"
	"github.com/unforked/kcp/internal/tenancy/mounts"
)

// farServer starts a server at an address. It trusts the users in headers from proxies with a
// certificate of an authority, and two static tokens.
func farServer(t *testing.T, dir, address string, proxies *certAuthority) *running {
	t.Helper()
	listener := must(net.Listen("tcp", address))(t)
	o := authn.DefaultOptions()
	o.RequestHeader.ClientCAFile = proxies.file(t)
	o.RequestHeader.UsernameHeaders, o.RequestHeader.UIDHeaders = []string{"X-Remote-User"}, []string{"X-Remote-Uid"}
	o.RequestHeader.GroupHeaders, o.RequestHeader.ExtraHeaderPrefixes = []string{"X-Remote-Group"}, []string{"X-Remote-Extra-"}
	o.TokenFile.TokenFile = file(t, "tokens.csv", []byte("far-token,farmer,1\nalices-token,mallory,2\n"))
	r := &running{dir: dir, url: "https://" + listener.Addr().String()}
	kubeconfig := filepath.Join(dir, "admin.kubeconfig")
	r.Server = must(server.New(t.Context(), server.Config{
		Dir: dir, NoSync: true, Listener: listener, ExternalURL: r.url, Kubeconfig: kubeconfig, Access: server.Access{Authentication: o},
	}))(t)
	t.Cleanup(r.Close)
	r.ca = must(clientcmd.BuildConfigFromFlags("", kubeconfig))(t).CAData
	return r
}

// A workspace on another kcp is reachable through its mount. The other server authorizes the
// user by name. Credentials and the local groups of the user are not sent.
func TestMountOfAnotherServer(t *testing.T) {
	t.Parallel()
	proxies := newCertAuthority(t)
	shown := proxies.client(t, "near")
	near := startConfigured(t, func(c *server.Config) {
		c.EgressAllow = loopback()
		c.Mounts = mounts.Certificate{CertFile: file(t, "tls.crt", shown.CertData), KeyFile: file(t, "tls.key", shown.KeyData)}
		c.Access.Authentication = authn.DefaultOptions()
		c.Access.Authentication.TokenFile.TokenFile = file(t, "tokens.csv", []byte("nobodys-token,nobody,nobody\nalices-token,alice,7,\"staff,system:masters\"\n"))
	})
	dir := t.TempDir()
	far := farServer(t, dir, "127.0.0.1:0", proxies)
	c, there, locked := near.tenant(t), far.tenant(t), far.tenant(t)
	c.define(edgeDefinition())
	path := c.mount("far", far.url+there.path(""), far.ca)
	beside := c.mount("beside", far.url+locked.path(""), far.ca)
	robot := "system:kcp:serviceaccount:" + string(c.name) + ":default:owner"
	for name, subject := range map[string]string{"alice": "alice", "robot": robot} {
		there.bind(name, "cluster-admin", rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: subject})
	}
	through := func(path, token string) kubernetes.Interface {
		config := &rest.Config{Host: near.url + path, BearerToken: token, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: near.ca}}
		h := must(rest.HTTPClientFor(config))(t)
		t.Cleanup(h.CloseIdleConnections)
		return must(kubernetes.NewForConfigAndClient(config, h))(t)
	}
	alice := through(path, "alices-token")

	// Requests of kubectl: discovery, apply, get, watch, delete.
	if groups, err := alice.Discovery().ServerGroups(); err != nil || len(groups.Groups) < 5 {
		t.Errorf("discovery: %v, %v", groups, err)
	}
	w := must(alice.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=it"}))(t)
	defer w.Stop()
	must(alice.CoreV1().ConfigMaps("default").Apply(t.Context(), applycorev1.ConfigMap("it", "default").WithData(map[string]string{"a": "b"}), metav1.ApplyOptions{FieldManager: "x"}))(t)
	if e := <-w.ResultChan(); e.Type != watch.Added {
		t.Errorf("a watch has %+v", e)
	}
	if cm := must(there.kube.CoreV1().ConfigMaps("default").Get(t.Context(), "it", metav1.GetOptions{}))(t); cm.Data["a"] != "b" {
		t.Errorf("over there it is %v", cm)
	}

	// The users as the other server sees them.
	for token, want := range map[string]string{"alices-token": "alice", c.account("owner"): robot} {
		config := &rest.Config{Host: near.url + path, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: near.ca}}
		if got, err := c.who(config); got != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	if _, err := through(beside, "alices-token").CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `"alice"`) {
		t.Errorf("who may do anything here may over there: %v", err)
	}
	for token, is := range map[string]func(error) bool{"far-token": apierrors.IsUnauthorized, "": apierrors.IsForbidden, "nobodys-token": apierrors.IsForbidden} {
		if _, err := through(path, token).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); !is(err) {
			t.Errorf("with the token %q: %v", token, err)
		}
	}
	c.checkFarComesAndGoes(path, dir, far, proxies, alice)
}

// checkFarComesAndGoes lets the other server become unready, stop and restart.
func (c *tenant) checkFarComesAndGoes(path, dir string, far *running, proxies *certAuthority, alice kubernetes.Interface) {
	c.t.Helper()
	gets := func() error {
		_, err := alice.CoreV1().ConfigMaps("default").Get(c.t.Context(), "it", metav1.GetOptions{})
		return err
	}
	phase := func(p string) {
		c.t.Helper()
		data := must(json.Marshal(map[string]any{"status": map[string]any{"phase": p}}))(c.t)
		must(c.any.Resource(edges).Namespace("default").Patch(c.t.Context(), "far", types.MergePatchType, data, metav1.PatchOptions{}))(c.t)
	}
	phase("Connecting")
	c.await(workspaces, "", "far", phaseIs("Unavailable"))
	if err := gets(); !apierrors.IsServiceUnavailable(err) {
		c.t.Errorf("while it is not ready: %v", err)
	}
	phase("Ready")
	c.await(workspaces, "", "far", phaseIs("Ready"))
	if err := gets(); err != nil {
		c.t.Errorf("when it is ready again: %v", err)
	}
	far.Close()
	if got := c.alice().send("GET", path+"/api", ""); got.code != http.StatusBadGateway {
		c.t.Errorf("when nobody is there: %d %s", got.code, got.body)
	}
	farServer(c.t, dir, strings.TrimPrefix(far.url, "https://"), proxies)
	if err := gets(); err != nil {
		c.t.Errorf("when it is back: %v", err)
	}
}
