package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/unforked/kcp/internal/server"
)

// batches gets events by webhook, after it has failed for once.
type batches struct {
	mu     sync.Mutex
	failed bool
	all    [][]auditv1.Event
}

func (b *batches) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.failed {
		b.failed = true
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	var list auditv1.EventList
	if json.NewDecoder(req.Body).Decode(&list) == nil {
		b.all = append(b.all, list.Items)
	}
}

// of returns how many events there are of a verb, how many of these lack their bodies, and
// how long the longest batch is.
func (b *batches) of(verb string) (events, cut, longest int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, batch := range b.all {
		longest = max(longest, len(batch))
		for _, e := range batch {
			if e.Verb == verb {
				events++
			}
			if e.Verb == verb && e.Annotations["audit.k8s.io/truncated"] == "true" && e.RequestObject == nil {
				cut++
			}
		}
	}
	return events, cut, longest
}

// The file of audit events is rotated, compressed and removed, and they go to the webhook
// in batches, large ones without their bodies, as was chosen.
func TestAuditOptions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	hook := &batches{}
	sink := httptest.NewServer(hook)
	t.Cleanup(sink.Close)
	o := server.DefaultOperation()
	log, webhook := &o.Audit.LogOptions, &o.Audit.WebhookOptions
	o.Audit.PolicyFile = filepath.Join(dir, "policy.yaml")
	write(t, o.Audit.PolicyFile, []byte(auditPolicy))
	log.Path, log.MaxSize, log.MaxBackups, log.MaxAge, log.Compress = filepath.Join(dir, "audit.log"), 1, 2, 1, true
	ancient := filepath.Join(dir, "audit-2001-01-01T00-00-00.000.log")
	write(t, ancient, nil)
	webhook.ConfigFile, webhook.InitialBackoff = filepath.Join(dir, "webhook.kubeconfig"), 10*time.Millisecond
	write(t, webhook.ConfigFile, []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"c","cluster":{"server":"`+sink.URL+`"}}],"contexts":[{"name":"c","context":{"cluster":"c"}}]}`))
	webhook.BatchOptions.Mode = "batch"
	webhook.BatchOptions.BatchConfig.MaxBatchSize, webhook.BatchOptions.BatchConfig.MaxBatchWait = 2, 50*time.Millisecond
	webhook.TruncateOptions.Enabled, webhook.TruncateOptions.TruncateConfig.MaxEventSize = true, 100_000
	s := operate(t, t.TempDir(), o)

	maps := s.client(t, "root", "").CoreV1().ConfigMaps("default")
	backups := func() []string { return must(filepath.Glob(filepath.Join(dir, "audit-*")))(t) }
	made := 0
	fill := func(n int) {
		for range n {
			cm := named(fmt.Sprint("large-", made))
			cm.Data = map[string]string{"x": strings.Repeat("x", 200_000)} // and as much in the answer
			must(maps.Create(t.Context(), cm, metav1.CreateOptions{}))(t)
			made++
		}
	}
	fill(3)
	eventually(t, "there is one file of before, compressed, and none of long before", func() bool {
		all := backups()
		return len(all) == 1 && strings.HasSuffix(all[0], ".log.gz")
	})
	fill(6)
	eventually(t, "there are two files of before, compressed", func() bool {
		all := backups()
		return len(all) == 2 && strings.HasSuffix(all[0], ".log.gz") && strings.HasSuffix(all[1], ".log.gz")
	})
	eventually(t, "the webhook has all events", func() bool {
		events, _, _ := hook.of("create")
		return events >= made
	})
	if _, cut, longest := hook.of("create"); cut < made || longest > 2 {
		t.Errorf("%d of %d events are cut, and a batch has %d", cut, made, longest)
	}
}
