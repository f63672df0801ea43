package faults

import (
	"context"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/storage/etcdtest"
	"github.com/unforked/kcp/test/child"
)

// A history has all changes in etcd from the first revision. Its watch does not use links.
type history struct {
	client *clientv3.Client

	mu         sync.Mutex
	events     []event            // guarded by mu
	rev        int64              // guarded by mu: revision of the last known event
	candidates []*mvccpb.KeyValue // guarded by mu: for the loops, the oldest first
	ends       bool               // guarded by mu: the key last exists
	err        error              // guarded by mu: error that ended the watch
}

// last is the key of the last write of the test.
const last = "/faults/last"

// record starts a history that ends with the test.
func record(t *testing.T, etcd *etcdtest.Cluster) *history {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: etcd.Servers(), DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	h := &history{client: client}
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() { h.follow(ctx) })
	t.Cleanup(func() {
		cancel()
		watching.Wait()
		_ = client.Close() // its context may have ended
	})
	return h
}

// follow watches until ctx ends. It resumes broken watches.
func (h *history) follow(ctx context.Context) {
	for ctx.Err() == nil {
		watching, cancel := context.WithCancel(ctx)
		for resp := range h.client.Watch(clientv3.WithRequireLeader(watching), "/", clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithRev(h.revision()+1)) {
			if resp.CompactRevision > 0 {
				h.fail(resp.Err())
				cancel()
				return
			}
			h.take(resp.Events)
		}
		cancel()
		_ = child.Pause(ctx, 50*time.Millisecond) // the loop looks at ctx
	}
}

func (h *history) revision() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rev
}

func (h *history) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
}

func (h *history) take(events []*clientv3.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range events {
		got := event{key: string(e.Kv.Key), rev: e.Kv.ModRevision, gone: e.Type == clientv3.EventTypeDelete, mark: markIn(e.Kv.Value)}
		if e.PrevKv != nil {
			got.before, got.beforeRev = markIn(e.PrevKv.Value), e.PrevKv.ModRevision
		}
		h.events = append(h.events, got)
		h.rev = max(h.rev, got.rev)
		h.ends = h.ends || got.key == last
		switch {
		case !strings.Contains(got.key, "/leases/") || path.Base(path.Dir(got.key)) != "loops":
		case got.gone:
			h.candidates = slices.DeleteFunc(h.candidates, func(c *mvccpb.KeyValue) bool { return string(c.Key) == got.key })
		default:
			h.candidates = append(h.candidates, e.Kv)
		}
	}
}

// leader returns the process id of the kcp that runs the loops, or 0.
func (h *history) leader() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.candidates) == 0 {
		return 0
	}
	_, id, _ := strings.Cut(string(h.candidates[0].Value), "/")
	pid, _ := strconv.Atoi(id) // or 0
	return pid
}

// clusters returns the existing logical clusters.
func (h *history) clusters() map[string]bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := map[string]bool{}
	for _, e := range h.events {
		if at := placeOf(e.key); at.cluster != "" {
			all[at.cluster] = true
		}
	}
	return all
}

// whole returns all events until now.
func (h *history) whole(ctx context.Context) ([]event, error) {
	if _, err := h.client.Put(ctx, last, ""); err != nil {
		return nil, err
	}
	for {
		h.mu.Lock()
		ends, err, events := h.ends, h.err, slices.Clone(h.events)
		h.mu.Unlock()
		if ends || err != nil {
			return events, err
		}
		if err := child.Pause(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// compact compacts etcd at the revision of the history.
func (h *history) compact(ctx context.Context) error {
	_, err := h.client.Compact(ctx, h.revision())
	return err
}
