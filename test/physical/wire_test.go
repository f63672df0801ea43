package physical

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/place"
	"github.com/unforked/kcp/test/stock"
)

// A wire is a TCP connection to a server that can be cut.
type wire struct {
	to       string
	listener net.Listener
	work     sync.WaitGroup

	mu   sync.Mutex
	cut  bool              // guarded by mu
	open map[net.Conn]bool // guarded by mu
}

// newWire returns a wire to an address.
func newWire(t *testing.T, to string) *wire {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{to: to, listener: l, open: map[net.Conn]bool{}}
	w.work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.work.Go(func() { w.pass(c) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); w.set(true); w.work.Wait() })
	return w
}

func (w *wire) addr() string { return w.listener.Addr().String() }

func (w *wire) pass(near net.Conn) {
	defer func() { _ = near.Close() }()
	far, err := net.Dial("tcp", w.to)
	if err != nil || !w.keep(near, far) {
		return
	}
	defer func() { _ = far.Close() }()
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(far, near); _ = far.Close() })
	both.Go(func() { _, _ = io.Copy(near, far); _ = near.Close() })
	both.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.open, near)
	delete(w.open, far)
}

// keep remembers open connections, unless the wire is cut.
func (w *wire) keep(both ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range both {
		if w.cut {
			_ = c.Close()
		} else {
			w.open[c] = true
		}
	}
	return !w.cut
}

// set cuts the wire, or mends it.
func (w *wire) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	for c := range w.open {
		if cut {
			_ = c.Close()
		}
	}
}

// A zoned is a world of six targets in two zones, which share a control plane, each with a wire of its
// own.
type zoned struct {
	*world
	wires map[string]*wire
}

func newZoned(t *testing.T) *zoned {
	z := &zoned{world: newWorld(t, "shared"), wires: map[string]*wire{}}
	z.stopServer(t)
	z.evictions = place.Rate{PerSecond: 1, Burst: 4}
	z.startServer(t)
	must(t, "ws", "create", ":root:compute")
	for i, name := range []string{"a", "b", "c", "d", "e", "f"} {
		config := z.clusters["shared"].Config(stock.UserToken)
		z.wires[name] = newWire(t, strings.TrimPrefix(config.Host, "https://"))
		config.Host = "https://" + z.wires[name].addr()
		file := filepath.Join(z.dir, name+".kubeconfig")
		writeKubeconfig(t, file, config)
		must(t, "workload", "sync", name, "--kubeconfig", file, "--labels", fmt.Sprintf("topology.kubernetes.io/zone=%d", i/3), "-w", ":root:compute")
	}
	return z
}

// cut cuts the wires of targets, and waits until the server says that they are unreachable.
func (z *zoned) cut(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		z.wires[name].set(true)
	}
	for _, name := range names {
		z.condition(t, name, workload.APIServerHealthy, func(s *workload.SyncTargetStatus) bool { return s.UnreachableSince != nil })
	}
}

func (z *zoned) mend(t *testing.T) {
	t.Helper()
	for _, w := range z.wires {
		w.set(false)
	}
	for name := range z.wires {
		z.condition(t, name, conditions.Ready, func(s *workload.SyncTargetStatus) bool { return s.Conditions.IsTrue(conditions.Ready) })
	}
}
