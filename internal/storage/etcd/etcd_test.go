package etcd

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/unforked/kcp/internal/storage/etcdtest"
)

func TestMain(m *testing.M) {
	etcdtest.Main()
	os.Exit(m.Run())
}

// opened opens an etcd that closes with the test.
func opened(t testing.TB, c Config) *Backend {
	t.Helper()
	b, err := Open(t.Context(), c, t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// TestCompactionInterval checks that the interval applies to embedded and external etcds.
func TestCompactionInterval(t *testing.T) {
	interval := 300 * time.Millisecond // the default is five minutes
	for name, e := range map[string]Config{
		"in the process": {CompactionInterval: interval},
		"the shortest":   {CompactionInterval: 1},
		"outside":        {CompactionInterval: interval, Servers: etcdtest.Start(t, etcdtest.Options{}).Servers()},
	} {
		t.Run(name, func(t *testing.T) {
			client := opened(t, e).Client
			begin, err := client.Put(t.Context(), "/elsewhere", "")
			if err != nil {
				t.Fatal(err)
			}
			tick := time.NewTicker(interval / 10)
			defer tick.Stop()
			deadline := time.After(time.Minute)
			for {
				if _, err := client.Put(t.Context(), "/elsewhere", ""); err != nil {
					t.Fatal(err)
				}
				_, err := client.Get(t.Context(), "/elsewhere", clientv3.WithRev(begin.Header.Revision))
				if errors.Is(err, rpctypes.ErrCompacted) {
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				select {
				case <-tick.C:
				case <-deadline:
					t.Fatal("history is not compacted")
				}
			}
		})
	}
}

// Errors of an etcd that cannot be used are one line with the flag.
func TestUnusableEtcd(t *testing.T) {
	for name, c := range map[string]struct {
		config Config
		says   []string
	}{
		"nobody listens": {Config{Servers: []string{"http://127.0.0.1:1"}}, []string{"http://127.0.0.1:1", "connection refused", "--etcd-servers"}},
		"no URL":         {Config{Servers: []string{"127.0.0.1:2379"}}, []string{`"127.0.0.1:2379"`, "--etcd-servers"}},
		"mixed":          {Config{Servers: []string{"http://127.0.0.1:1", "https://127.0.0.1:2"}}, []string{"--etcd-servers"}},
		"no TLS":         {Config{Servers: []string{"http://127.0.0.1:1"}, CAFile: "ca"}, []string{"--etcd-cafile", "https"}},
		"no CA file":     {Config{Servers: []string{"https://127.0.0.1:1"}, CAFile: "/nowhere"}, []string{"--etcd-cafile", "/nowhere"}},
		"no key":         {Config{Servers: []string{"https://127.0.0.1:1"}, CertFile: "/nowhere"}, []string{"--etcd-keyfile"}},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := Open(t.Context(), c.config, t.TempDir(), false)
			if err == nil {
				b.Close()
				err = errors.New("none")
			}
			t.Log(err)
			for _, text := range c.says {
				if !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "\n") {
					t.Errorf("error %q does not say %q", err, text)
				}
			}
		})
	}
}
