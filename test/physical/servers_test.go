//go:build unix

package physical

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/auth/credentials"
	"github.com/unforked/kcp/internal/workload/syncer"
	"github.com/unforked/kcp/internal/workload/tunnel"
)

// TestServers has two servers on one etcd, a load balancer before them, and a physical cluster whose
// agent is connected to one of them.
func TestServers(t *testing.T) {
	w := newWorld(t, "east")
	w.stopServer(t)
	f := &front{world: w, balancer: newBalancer(t)}
	f.servers[0], f.servers[1] = f.start(t, 0), f.start(t, 1)
	t.Cleanup(func() {
		for _, s := range f.servers {
			s.stop(t)
		}
	})
	w.server = f.servers[0].Server // newWorld stops it; again does nothing
	w.config = f.servers[0].config
	t.Setenv("KUBECONFIG", f.servers[0].Kubeconfig)
	must(t, "ws", "create", ":root:compute")
	east := w.sync(t, "east", "compute")
	f.key = w.keyOf(t, "east")
	s := w.shop(t, "shop", "compute")
	s.create(t, "web", 2)
	s.rolledOut(t, "web")
	t.Run("the server without the tunnel", func(t *testing.T) { f.throughTheOther(t, 0) })
	t.Run("nobody else is a peer", func(t *testing.T) { f.isolatesPeers(t, east) })
	t.Run("the agent moves to another server", func(t *testing.T) { f.movesAgent(t) })
	t.Run("the server with the tunnel restarts", func(t *testing.T) { f.restartsServer(t) })
	t.Run("the agent restarts", func(t *testing.T) { f.restartsAgent(t, east) })
}

// A front is a load balancer and two servers.
type front struct {
	*world
	*balancer
	servers [2]*replica
	key     string // of the target
}

// A replica is one of several equal servers.
type replica struct {
	*kcp.Server
	config *rest.Config // for this one, not for the load balancer
	view   *syncer.View
	closed bool
}

func (r *replica) stop(t *testing.T) {
	if r == nil || r.closed {
		return
	}
	r.closed = true
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// start starts a server on the etcd of the physical cluster.
func (f *front) start(t *testing.T, n int) *replica {
	t.Helper()
	r := &replica{view: &syncer.View{}}
	r.Server = f.shared(fmt.Sprint("kcp", n), "east", r.view)
	r.Listen, r.ExternalURL = f.at[n], "https://"+f.listener.Addr().String()
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.config, err = clientcmd.BuildConfigFromFlags("", r.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	r.config.Host, r.config.QPS = "https://"+f.at[n], -1
	return r
}

// shop returns the workspace at one of the servers.
func (f *front) shop(t *testing.T, n int) *tenant {
	t.Helper()
	w := *f.world
	w.config = f.servers[n].config
	return w.enter(t, "shop")
}

// hasTunnel returns nil if a server, and no other, has the tunnel of the agent.
func (f *front) hasTunnel(t *testing.T, n int) error {
	t.Helper()
	for i, r := range f.servers {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://physical/version", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Client{Transport: r.view.Tunnels.Transport(f.key)}).Do(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		if (err == nil) != (i == n) || err != nil && !errors.Is(err, tunnel.ErrNone) {
			return fmt.Errorf("server %d: %w", i, err)
		}
	}
	return nil
}

// A balancer passes connections on to the first server that answers.
type balancer struct {
	listener net.Listener
	at       [2]string // the addresses of the servers

	mu    sync.Mutex
	first int        // guarded by mu
	open  []net.Conn // guarded by mu
}

func newBalancer(t *testing.T) *balancer {
	t.Helper()
	b := &balancer{}
	var listeners [3]net.Listener
	for i := range listeners {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[i] = l
	}
	for i := range b.at {
		b.at[i] = listeners[i].Addr().String()
		if err := listeners[i].Close(); err != nil {
			t.Fatal(err)
		}
	}
	b.listener = listeners[2]
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := b.listener.Accept()
			if err != nil {
				return
			}
			work.Go(func() { b.pass(c) })
		}
	})
	t.Cleanup(func() { _ = b.listener.Close(); b.prefer(0); work.Wait() })
	return b
}

// prefer sends new connections to a server, and ends those that are open.
func (b *balancer) prefer(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.first = n
	for _, c := range b.open {
		_ = c.Close() // it may have ended
	}
	b.open = nil
}

func (b *balancer) pass(c net.Conn) {
	defer c.Close()
	b.mu.Lock()
	b.open = append(b.open, c)
	order := []string{b.at[b.first], b.at[1-b.first]}
	b.mu.Unlock()
	for _, at := range order {
		far, err := net.DialTimeout("tcp", at, time.Second)
		if err != nil {
			continue
		}
		var both sync.WaitGroup
		both.Go(func() { defer far.Close(); defer c.Close(); _, _ = io.Copy(far, c) })
		_, _ = io.Copy(c, far)
		_, _ = c.Close(), far.Close()
		both.Wait()
		return
	}
}

// throughTheOther reads pods, logs, and runs commands at both servers, of which one has the tunnel.
func (f *front) throughTheOther(t *testing.T, has int) {
	eventually(t, "the tunnel", func() error { return f.hasTunnel(t, has) })
	for n := range f.servers {
		s := f.shop(t, n)
		eventually(t, "pods", func() error {
			all, said := s.pods(t, metav1.ListOptions{})
			if len(all) != 2 || len(said) > 0 {
				return fmt.Errorf("server %d: %d pods, %q", n, len(all), said)
			}
			return nil
		})
		s.streams(t, s.config)
		if err := f.hasTunnel(t, has); err != nil {
			t.Error(err)
		}
	}
}

// isolatesPeers is an attack on what servers serve each other.
func (f *front) isolatesPeers(t *testing.T, east *installed) {
	pair := east.certificate(t)
	for what, config := range map[string]*tls.Config{
		"no certificate":  {},
		"an agent":        {Certificates: []tls.Certificate{pair}},
		"the peers' name": {ServerName: "peer.kcp.invalid", Certificates: []tls.Certificate{pair}},
		"a like one":      {ServerName: "peer.kcp.invalid", Certificates: []tls.Certificate{like(t)}},
	} {
		config.InsecureSkipVerify = true
		for _, token := range []string{"", f.config.BearerToken} {
			for _, at := range f.at {
				answers := map[string]int{}
				for _, path := range []string{"/peers/tunnels/" + f.key, "/peers/tunnels/none", "/peers/else", "/else"} {
					req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+at+path, nil)
					if err != nil {
						t.Fatal(err)
					}
					req.Header.Set("Connection", "Upgrade")
					req.Header.Set("Upgrade", "kcp-tunnel-peer")
					if token != "" {
						req.Header.Set("Authorization", "Bearer "+token)
					}
					resp, err := (&http.Transport{TLSClientConfig: config, DisableKeepAlives: true}).RoundTrip(req)
					if err != nil {
						t.Fatal(err)
					}
					answers[path] = resp.StatusCode
					_ = resp.Body.Close()
				}
				for path, code := range answers {
					if code < 400 || code != answers["/else"] {
						t.Errorf("%s, token %v: %s is %d, /else is %d", what, token != "", path, code, answers["/else"])
					}
				}
			}
		}
	}
	// A tenant sees no address of a server when nobody has a tunnel.
	east.stop()
	defer func() {
		east.start(t)
		eventually(t, "the tunnel is back", func() error { return f.hasTunnel(t, 0) })
	}()
	eventually(t, "no tunnel", func() error { return f.hasTunnel(t, -1) })
	for n := range f.servers {
		s := f.shop(t, n)
		_, said := s.pods(t, metav1.ListOptions{})
		_, err := s.CoreV1().Pods("default").Get(t.Context(), "x", metav1.GetOptions{})
		if len(said) != 1 || !strings.Contains(said[0], "does not answer") || err == nil {
			t.Errorf("server %d: %q, %v", n, said, err)
		}
		text := fmt.Sprint(said, err)
		s.tellsNothing(t, text)
		for _, at := range f.at {
			if _, port, _ := net.SplitHostPort(at); strings.Contains(text, port) {
				t.Errorf("the address of a server is in %s", text)
			}
		}
	}
}

// like returns a certificate with the names of the peers' and another key.
func like(t *testing.T) tls.Certificate {
	t.Helper()
	cert, key, err := credentials.Issue(&x509.Certificate{Subject: pkix.Name{CommonName: "peer.kcp.invalid"}, DNSNames: []string{"peer.kcp.invalid"}, NotAfter: time.Now().Add(time.Hour)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// movesAgent makes the load balancer send the agent to the other server, and back.
func (f *front) movesAgent(t *testing.T) {
	before := f.clusters["east"].state(t, "web")
	for _, n := range []int{1, 0} {
		f.prefer(n)
		f.throughTheOther(t, n)
		s := f.shop(t, 1-n)
		name := fmt.Sprint("after-", n)
		s.create(t, name, 1) // the agent's watches go on
		s.rolledOut(t, name)
		s.remove(t, name)
	}
	if after := f.clusters["east"].state(t, "web"); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
}

// restartsServer restarts the server that leads and has the tunnel, while a log is followed through the
// other one.
func (f *front) restartsServer(t *testing.T) {
	before := f.clusters["east"].state(t, "web")
	s := f.shop(t, 1)
	all, _ := s.pods(t, metav1.ListOptions{})
	follow, err := s.CoreV1().Pods("default").GetLogs(all[0].Name, &corev1.PodLogOptions{Follow: true}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(follow)
	if !lines.Scan() {
		t.Fatal(lines.Err())
	}
	began := time.Now()
	f.servers[0].stop(t)
	t.Logf("the server stopped within %s", time.Since(began).Round(time.Millisecond))
	for lines.Scan() {
	}
	_ = follow.Close()
	eventually(t, "the agent is at the other server", func() error { return f.hasTunnel(t, 1) })
	s.create(t, "second", 1) // the other server leads
	s.rolledOut(t, "second")
	s.streams(t, s.config)
	f.servers[0] = f.start(t, 0)
	s.remove(t, "second")
	f.throughTheOther(t, 1)
	if after := f.clusters["east"].state(t, "web"); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
}

// restartsAgent restarts the agent while pods are watched at the server to which it is not connected.
func (f *front) restartsAgent(t *testing.T, east *installed) {
	before := f.clusters["east"].state(t, "web")
	s := f.shop(t, 0)
	list, err := s.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	watch, err := s.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	east.stop()
	eventually(t, "no tunnel", func() error { return f.hasTunnel(t, -1) })
	east.start(t)
	eventually(t, "a deletion", func() error {
		return s.CoreV1().Pods("default").Delete(t.Context(), list.Items[0].Name, metav1.DeleteOptions{})
	})
	late := time.After(patience)
	for gone := false; !gone; {
		select {
		case e, ok := <-watch.ResultChan():
			if !ok {
				t.Fatal("the watch ended")
			}
			p, _ := e.Object.(*corev1.Pod)
			gone = e.Type == "DELETED" && p != nil && p.UID == list.Items[0].UID
		case <-late:
			t.Fatal("the watch has not seen the deletion")
		}
	}
	if after := f.clusters["east"].state(t, "web"); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
}
