package store

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp/internal/storage/etcd/outage"
	"github.com/unforked/kcp/internal/storage/etcdtest"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/storetest"
)

// A shiftedClock is the clock of the machine plus an offset.
type shiftedClock struct{ by atomic.Int64 }

func (c *shiftedClock) now() time.Time { return time.Now().Add(time.Duration(c.by.Load())) }

// stopped moves the clock by a minute, as if the process had been suspended.
func (c *shiftedClock) stopped() { c.by.Add(int64(time.Minute)) }

// No decision may depend on data older than the limit, unless etcd has confirmed that the
// data is current.
func TestCurrent(t *testing.T) {
	clock := &shiftedClock{}
	_, all := severalAt(t, 2, etcdtest.Options{}, clock.now)
	hold, held := make(chan struct{}), make(chan struct{}, 1)
	p := all[1].Feed()
	p.Follow(probe{apply: func(e feed.Event) {
		if e.Key.Name == "held" {
			held <- struct{}{}
			<-hold
		}
	}})
	configMapsOf(t, all[0])
	configMapsOf(t, all[1])
	storetest.StartFeeds(t, all...)
	create(t, all[0], "c1")
	clock.stopped()
	if waited, err := p.Current(t.Context()); err != nil || !waited {
		t.Errorf("after it was stopped: waited %t, %v", waited, err)
	}
	if c, newest := p.Revision(), all[0].guard.latest.Load(); c < newest {
		t.Errorf("confirmed at revision %d, and %d was acknowledged before", c, newest)
	}
	// A confirmation with a later time than now does not count: the clock was set back.
	clock.by.Store(int64(-time.Minute))
	if waited, err := p.Current(t.Context()); err != nil || !waited {
		t.Errorf("after the clock was set back: waited %t, %v", waited, err)
	}
	clock.by.Store(0)
	if _, err := all[0].Commit(t.Context(), []Write{{Resource: keys.NativeResource(configMaps), Cluster: "c1", Object: configMap("ns", "held", "")}}); err != nil {
		t.Fatal(err)
	}
	<-held
	clock.stopped()
	ctx := outage.WithNote(t.Context())
	if _, err := p.Current(ctx); !apierrors.IsServiceUnavailable(err) || outage.Noted(ctx) == nil {
		t.Errorf("while changes are not applied: %v; outage %v", err, outage.Noted(ctx))
	}
	if seconds, ok := apierrors.SuggestsClientDelay(outage.Noted(ctx)); !ok || seconds < 1 {
		t.Errorf("the refusal says to try again in %d seconds", seconds)
	}
	close(hold)
	if _, err := p.Current(t.Context()); err != nil {
		t.Errorf("after they were applied: %v", err)
	}
}

// With an embedded etcd, data needs no confirmation: no other process writes.
func TestCurrentInOneProcess(t *testing.T) {
	s, _, stop := open(t, t.TempDir())
	defer stop()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if waited, err := s.Feed().Current(ended); waited || err != nil {
		t.Errorf("waited %t, %v", waited, err)
	}
}

// An etcd server that hangs delays requests only briefly, whether or not it serves the watch
// of the feed. Another server answers reads, and the feed reconnects to it.
func TestCurrentWhileAServerHangs(t *testing.T) {
	clock := &shiftedClock{}
	members, all := severalAt(t, 2, etcdtest.Options{Members: 3}, clock.now)
	for _, s := range all {
		configMapsOf(t, s)
	}
	storetest.StartFeeds(t, all...)
	create(t, all[0], "c1")
	for _, m := range members.Members {
		m.Hang()
		for _, s := range all {
			clock.stopped()
			for t.Context().Err() == nil {
				if _, err := s.Feed().Current(t.Context()); err == nil {
					break
				}
			}
		}
		m.Resume()
	}
}
