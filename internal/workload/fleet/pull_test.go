package fleet

import (
	"context"
	"testing"
	"time"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/kcptest"
)

// A server that does not lead opens a fleet for its agents. That fleet ends when the server leads, because the
// leader has a fleet with the same caches.
func TestOneFleet(t *testing.T) {
	u := &kcptest.Universe{Server: &kcp.Server{Listen: "127.0.0.1:0", NoSync: true, Extensions: []kcp.Extension{Extension(Options{})}}}
	t.Cleanup(func() {
		if err := u.Close(); err != nil {
			t.Error(err)
		}
	})
	c := u.New(t)
	m, err := newManager(c.Server, Options{Renew: time.Second, Expire: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	compute := kcp.ClusterName(c.Name)
	own, end, err := m.source(t.Context(), compute)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	select {
	case <-own.Ended:
		t.Fatal("it ends before the server leads")
	default:
	}
	leads, err := m.newTerm(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { leads.end(); leads.work.Wait() })
	m.mu.Lock()
	m.term = leads
	m.mu.Unlock()
	f, err := m.fleet(t.Context(), leads, compute, true)
	if err != nil {
		t.Fatal(err)
	}
	<-own.Ended
	next, endNext, err := m.source(t.Context(), compute)
	if err != nil {
		t.Fatal(err)
	}
	defer endNext()
	if next.Assignments != f.consumers.Assignments {
		t.Error("a server that leads has the objects of the workspace twice")
	}
}
