package kcp_test

import (
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/unforked/kcp"
)

// Two servers can share a port if both permit it, as in a handover. A server can also take
// the port of one that has just stopped.
func TestSharedPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	sharing := func(port, address bool) *kcp.Server {
		s := &kcp.Server{Dir: t.TempDir(), Listen: at, NoSync: true, Operation: kcp.DefaultOperation()}
		s.Operation.Serving.PermitPortSharing, s.Operation.Serving.PermitAddressSharing = port, address
		return s
	}
	byName := sharing(true, false)
	_, port, _ := net.SplitHostPort(at)
	byName.Listen = net.JoinHostPort("localhost", port)
	first, second := start(t, byName), start(t, sharing(true, false))
	if conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.2", port)); err == nil { // another loopback address
		t.Errorf("a server that listens at %s is reached at %s: %v", byName.Listen, conn.RemoteAddr(), conn.Close())
	}
	alone := sharing(false, true)
	if err := alone.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "choose another") {
		t.Errorf("one that does not share the port: %v", err)
	}
	for _, s := range []*kcp.Server{first, second} {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	again := start(t, sharing(false, true))
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(again.Dir, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	resp, err := client.Get("https://" + at + "/livez")
	if err != nil {
		t.Fatal(err)
	}
	if _ = resp.Body.Close(); resp.StatusCode != http.StatusOK {
		t.Errorf("the next server answers %s", resp.Status)
	}
	wild := &kcp.Server{Listen: "127.0.0.1:0", NoSync: true, Operation: kcp.DefaultOperation()}
	wild.Operation.Serving.PermitPortSharing = true
	if err := wild.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "--secure-port") {
		t.Errorf("any port is shared: %v", err)
	}
}
