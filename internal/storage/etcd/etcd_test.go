package etcd

import (
	"errors"
	"os"
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
