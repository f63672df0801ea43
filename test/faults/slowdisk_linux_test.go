package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/unforked/kcp/test/child"
)

const rootMaps = "/clusters/root" + namespaces + "/default/configmaps"

// A single is a server with an embedded etcd on a disk that a test controls.
type single struct {
	t    *testing.T
	disk *disk
	dir  string

	mu   sync.Mutex
	made []string // guarded by mu: config maps whose creation was acknowledged
}

func newSingle(t *testing.T) *single {
	t.Helper()
	return &single{t: t, disk: newDisk(t, kcp(t)), dir: t.TempDir()}
}

// start starts the server, and returns a client of its administrator.
func (s *single) start() (*child.KCP, *child.Client) {
	s.t.Helper()
	k, err := child.Start(s.t.Context(), s.disk.program, s.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(k.Stop)
	api, err := child.NewClient(k.Admin)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(api.Close)
	return k, api
}

// write creates config maps until ctx ends.
func (s *single) write(ctx context.Context, api *child.Client, prefix string) {
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("%s-%d", prefix, i)
		body := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"name":%q}}`, name, name)
		if _, err := api.Call(ctx, http.MethodPost, rootMaps, child.JSON, body); err != nil {
			_ = child.Pause(ctx, 10*time.Millisecond) // the loop looks at ctx
			continue
		}
		s.mu.Lock()
		s.made = append(s.made, name)
		s.mu.Unlock()
	}
}

func (s *single) acknowledged() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.made)
}

// until waits for a condition.
func (s *single) until(what string, is func() bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	for !is() {
		if child.Pause(ctx, 10*time.Millisecond) != nil {
			s.t.Fatal("it does not come to pass that ", what)
		}
	}
}

// complete checks that all acknowledged config maps are there.
func (s *single) complete(api *child.Client) {
	s.t.Helper()
	b, err := api.Call(s.t.Context(), http.MethodGet, rootMaps, child.JSON, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	var list struct {
		Items []struct{ Data map[string]string }
	}
	if err := json.Unmarshal(b, &list); err != nil {
		s.t.Fatal(err)
	}
	there := map[string]bool{}
	for _, o := range list.Items {
		there[o.Data["name"]] = true
	}
	for _, name := range s.made {
		if !there[name] {
			s.t.Errorf("the creation of %s was acknowledged, and it is missing", name)
		}
	}
	s.t.Logf("%d creations were acknowledged, %d fsyncs", len(s.made), s.disk.syncs.Load())
}

// On a slow disk writes take long and succeed, and reads do not wait for them. A process that is
// killed then has lost nothing that it acknowledged.
func TestSlowDisk(t *testing.T) {
	t.Parallel() // it mostly waits
	s := newSingle(t)
	k, api := s.start()
	s.disk.delay.Store(int64(200 * time.Millisecond))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var load sync.WaitGroup
	var reads atomic.Int64
	for i := range 4 {
		load.Go(func() { s.write(ctx, api, fmt.Sprint("w", i)) })
	}
	reading, end := context.WithCancel(ctx)
	var reader sync.WaitGroup
	reader.Go(func() {
		for reading.Err() == nil {
			if _, err := api.Call(reading, http.MethodGet, rootMaps+"/kube-root-ca.crt", child.JSON, nil); err != nil && reading.Err() == nil {
				t.Error("a read: ", err)
				return
			}
			reads.Add(1)
		}
	})
	s.until("writes are acknowledged", func() bool { return s.acknowledged() >= 20 })
	end()
	reader.Wait()
	if n := reads.Load(); n <= int64(s.acknowledged()) { // a read that waits for the disk takes as long as a write
		t.Errorf("only %d reads beside %d writes: they wait for the disk", n, s.acknowledged())
	}
	if _, err := api.Call(ctx, http.MethodGet, "/readyz", "*/*", nil); err != nil {
		t.Error("not ready: ", err)
	}
	if out, err := exec.CommandContext(ctx, s.disk.program, "doctor", "--root-directory="+k.Root).Output(); err == nil || !strings.Contains(string(out), "an fsync takes") {
		t.Errorf("kcp doctor does not find the slow disk: %v\n%s", err, out)
	}
	if err := syscall.Kill(k.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-k.Done()
	cancel()
	load.Wait()
	s.disk.delay.Store(0)
	_, again := s.start()
	s.complete(again)
}

// A server whose disk fails to write ends, because nothing that it could acknowledge would be safe.
func TestFailingDisk(t *testing.T) {
	t.Parallel() // it mostly waits
	s := newSingle(t)
	k, api := s.start()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var load sync.WaitGroup
	for i := range 4 {
		load.Go(func() { s.write(ctx, api, fmt.Sprint("w", i)) })
	}
	s.until("writes are acknowledged", func() bool { return s.acknowledged() >= 100 })
	s.disk.broken.Store(true)
	select {
	case <-k.Done():
	case <-time.After(time.Minute):
		t.Fatal("the server runs on a disk that fails")
	}
	cancel()
	load.Wait()
	s.disk.broken.Store(false)
	_, again := s.start()
	s.complete(again)
}
