package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/unforked/kcp/internal/server"
)

// batches collects audit events by webhook. The first request fails, unless failed is set.
type batches struct {
	mu     sync.Mutex
	failed bool
	down   bool // all requests fail
	all    [][]auditv1.Event
}

func (b *batches) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.failed || b.down {
		b.failed = true
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	var list auditv1.EventList
	if json.NewDecoder(req.Body).Decode(&list) == nil {
		b.all = append(b.all, list.Items)
	}
}

// of returns the number of events with a verb, how many of them lack their bodies, and the
// length of the longest batch.
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

// The options rotate, compress and remove audit files. The webhook gets batches, and large
// events without bodies.
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
	webhook.ConfigFile, webhook.InitialBackoff = hookFile(t, sink.URL), 10*time.Millisecond
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
			cm.Data = map[string]string{"x": strings.Repeat("x", 200_000)} // the response has the same size
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

func hookFile(t *testing.T, url string) string {
	return file(t, "webhook.kubeconfig", []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"c","cluster":{"server":"`+url+`"}}],"contexts":[{"name":"c","context":{"cluster":"c"}}]}`))
}

// recordedIn returns the events of creations in a complete file.
func recordedIn(t *testing.T, path string) (made []auditv1.Event) {
	t.Helper()
	for line := range strings.Lines(string(must(os.ReadFile(path))(t))) {
		var e auditv1.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.Verb == "create" && e.ObjectRef.Resource == "configmaps" && strings.HasPrefix(e.ObjectRef.Name, "map-") {
			made = append(made, e)
		}
	}
	return made
}

// The file gets events in batches, or when the server stops, and large ones without bodies.
// The webhook gets events at the configured rate. Events that do not fit into its buffer are
// dropped.
func TestAuditBatches(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	hook := &batches{failed: true}
	sink := httptest.NewServer(hook)
	t.Cleanup(sink.Close)
	o := server.DefaultOperation()
	log, webhook := &o.Audit.LogOptions, &o.Audit.WebhookOptions
	o.Audit.PolicyFile, log.Path = file(t, "policy.yaml", []byte(auditPolicy)), filepath.Join(dir, "audit.log")
	log.BatchOptions.Mode = "batch"
	log.BatchOptions.BatchConfig.MaxBatchSize, log.BatchOptions.BatchConfig.MaxBatchWait = 1000, time.Hour
	log.TruncateOptions.Enabled, log.TruncateOptions.TruncateConfig.MaxEventSize = true, 100_000
	webhook.ConfigFile, webhook.BatchOptions.Mode = hookFile(t, sink.URL), "batch"
	slow := &webhook.BatchOptions.BatchConfig
	slow.BufferSize, slow.MaxBatchSize, slow.ThrottleEnable, slow.ThrottleQPS, slow.ThrottleBurst = 2, 1, true, 0.5, 1
	begin, s := time.Now(), operate(t, t.TempDir(), o)
	maps := s.client(t, "root", "").CoreV1().ConfigMaps("default")
	const made = 40
	for i := range made {
		cm := named(fmt.Sprint("map-", i))
		cm.Data = map[string]string{"x": strings.Repeat("x", 100_000*(i%2))}
		must(maps.Create(t.Context(), cm, metav1.CreateOptions{}))(t)
	}
	if early, err := os.ReadFile(log.Path); err == nil && len(early) > 0 {
		t.Errorf("%d bytes are written before there are enough", len(early))
	}
	s.Close()
	all := recordedIn(t, log.Path)
	if len(all) != made {
		t.Errorf("%d of %d events are in the file", len(all), made)
	}
	for i, e := range all {
		if cut := e.Annotations["audit.k8s.io/truncated"] == "true" && e.RequestObject == nil; cut != (i%2 == 1) || e.APIVersion != "audit.k8s.io/v1" {
			t.Errorf("event %d is of %s, and cut: %v", i, e.APIVersion, cut)
		}
	}
	events, _, longest := hook.of("create")
	if most := slow.ThrottleBurst + int(float64(slow.ThrottleQPS)*time.Since(begin).Seconds()); events == 0 || events > most || events == made || longest != 1 {
		t.Errorf("the webhook got %d of %d events, in batches of %d; the rate allows %d", events, made, longest, most)
	}
}

// In mode blocking, a failing webhook does not fail requests. In mode blocking-strict,
// requests that cannot be recorded are refused.
func TestAuditBlocks(t *testing.T) {
	t.Parallel()
	for mode, strict := range map[string]bool{"blocking": false, "blocking-strict": true} {
		hook := &batches{}
		sink := httptest.NewServer(hook)
		t.Cleanup(sink.Close)
		o := server.DefaultOperation()
		o.Audit.PolicyFile = file(t, "policy.yaml", []byte(strings.ReplaceAll(auditPolicy, "omitStages: [RequestReceived]", "")))
		webhook := &o.Audit.WebhookOptions
		webhook.ConfigFile, webhook.InitialBackoff, webhook.BatchOptions.Mode = hookFile(t, sink.URL), time.Millisecond, mode
		s := operate(t, t.TempDir(), o)
		maps := s.client(t, "root", "").CoreV1().ConfigMaps("default")
		create := func(name string, down bool) error {
			hook.mu.Lock()
			hook.down = down
			hook.mu.Unlock()
			_, err := maps.Create(t.Context(), named(name), metav1.CreateOptions{})
			return err
		}
		if err := create("a", false); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
		if events, _, _ := hook.of("create"); events == 0 {
			t.Errorf("%s: a request is answered that is not recorded", mode)
		}
		if err := create("b", true); (err != nil) != strict {
			t.Errorf("%s, while the webhook fails: %v", mode, err)
		}
		if _, err := maps.Get(t.Context(), "b", metav1.GetOptions{}); !strict && err != nil {
			t.Errorf("%s: what was made is %v", mode, err)
		}
		if err := create("c", false); err != nil {
			t.Errorf("%s, when the webhook is back: %v", mode, err)
		}
	}
}
