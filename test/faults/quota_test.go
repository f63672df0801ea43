package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/unforked/kcp/internal/storage/etcdtest"
	"github.com/unforked/kcp/test/child"
)

const (
	quotaMost = 1200
	countedIn = "/clusters/root" + namespaces + "/counted"
)

// A quotaRace is two processes that create objects under one quota.
type quotaRace struct {
	t           *testing.T
	late, other *server
	link        *link // between late and etcd
	serial      atomic.Int64
}

func newQuotaRace(t *testing.T) *quotaRace {
	t.Helper()
	etcd, tokens := etcdtest.Start(t, etcdtest.Options{}), filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := &quotaRace{t: t}
	for _, to := range []**server{&r.late, &r.other} {
		r.link = newLink(t, strings.TrimPrefix(etcd.Members[0].URL(), "http://"))
		*to = &server{name: "kcp", binary: kcp(t), dir: t.TempDir(), tokens: tokens, links: []*link{r.link}}
		if err := (*to).start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup((*to).kill)
	}
	r.link = r.late.links[0]
	object := func(kind, name string) map[string]any {
		return map[string]any{"apiVersion": "v1", "kind": kind, "metadata": map[string]string{"name": name}}
	}
	q := object("ResourceQuota", "q")
	q["spec"] = map[string]any{"hard": map[string]string{"count/configmaps": fmt.Sprint(quotaMost)}}
	for _, made := range []int{
		r.status(r.other, strings.TrimSuffix(countedIn, "/counted"), object("Namespace", "counted")),
		r.status(r.other, countedIn+"/resourcequotas", q),
	} {
		if made != http.StatusCreated {
			t.Fatalf("prepare: answer %d", made)
		}
	}
	return r
}

func (r *quotaRace) status(s *server, path string, body map[string]any) int {
	code, _ := s.call(r.t.Context(), http.MethodPost, path, body)
	return code
}

// create creates a config map and returns the status of the answer.
func (r *quotaRace) create(s *server) int {
	return r.status(s, countedIn+"/configmaps", map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]string{"name": fmt.Sprint("cm-", r.serial.Add(1))},
	})
}

// fill creates config maps until the quota is full.
func (r *quotaRace) fill(ctx context.Context, s *server) {
	r.t.Helper()
	for code := 0; code != http.StatusForbidden; {
		if code = r.create(s); ctx.Err() != nil {
			r.t.Fatalf("the quota is not full; the last answer is %d", code)
		}
	}
}

// A process admits objects far from a quota, and is stopped. Its writes reach etcd only after
// another process has filled the quota. They do not exceed it.
func TestQuotaBesideAStoppedProcess(t *testing.T) {
	t.Parallel()
	r := newQuotaRace(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	r.link.late(30 * time.Millisecond) // so that many writes are on their way
	var made atomic.Int64
	var flying sync.WaitGroup
	stopped := make(chan error)
	for range 80 {
		flying.Go(func() {
			for made.Load() < 200 {
				if r.create(r.late) == http.StatusCreated && made.Add(1) == 200 {
					r.link.gate.Lock()
					stopped <- r.late.signal(syscall.SIGSTOP)
				}
			}
		})
	}
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	r.fill(ctx, r.other)
	r.link.gate.Unlock()
	if err := r.late.signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	flying.Wait()
	r.link.late(0)
	r.fill(ctx, r.late) // after all its earlier writes
	_, api := r.other.now()
	b, err := api.Call(ctx, http.MethodGet, countedIn+"/configmaps", child.JSON, nil)
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Items []json.RawMessage }
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	if n := len(list.Items); n != quotaMost {
		t.Errorf("%d config maps under a quota of %d", n, quotaMost)
	}
}
