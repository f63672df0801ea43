package store

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/unforked/kcp/internal/etcdtest"
)

func TestMain(m *testing.M) {
	etcdtest.Main()
	os.Exit(m.Run())
}

// outsideServers is the environment variable with the etcd for all stores of a run. Without
// it, each store has an embedded etcd.
const outsideServers = "STORE_TEST_SERVERS"

// here returns o for the etcd of this run. With an external etcd, each directory becomes a
// prefix, so that a store finds its data again.
func here(o Options) Options {
	servers := os.Getenv(outsideServers)
	if servers == "" {
		return o
	}
	o.Etcd.Servers = strings.Split(servers, ",")
	o.Etcd.CompactionInterval = -1 // tests compact explicitly
	o.Prefix = fmt.Sprintf("/%x", sha256.Sum256([]byte(o.Dir)))
	return o
}

// nightly reports whether the tests run in full.
func nightly() bool { return os.Getenv("NIGHTLY") != "" }

// The tests also pass with an external etcd, except those about files of the embedded one.
// make check runs a sample.
func TestAllOutside(t *testing.T) {
	if os.Getenv(outsideServers) != "" || testing.Short() {
		t.Skip("run by the long tests, once")
	}
	t.Parallel() // the members have their own processes
	members := etcdtest.Start(t, etcdtest.Options{Members: 3, Steady: true})
	const files = "Outside|UnusableEtcd|ServerHangs|EtcdAway|TestFull|LostLease|Restored|Secured|Several|Killed|Writer|DamagedFiles|Directory|Format|OpenCalledOff|FirstStart|Used|FailedOpen|CompactionInterval|InOneProcess|Prefixes|ForceNew|Leaderless"
	sample, want := "InitialEvents|Purged|Fence|Guard|Commit|Current|Ledger|Resume", 10
	if nightly() {
		sample, want = ".", 80
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run="+sample, "-test.skip="+files, "-test.v", "-test.timeout="+left(t).String())
	cmd.Env = append(os.Environ(), outsideServers+"="+strings.Join(members.Servers(), ","))
	out, err := cmd.CombinedOutput()
	passed := 0
	for line := range strings.Lines(string(out)) {
		switch {
		case strings.HasPrefix(line, "--- PASS"):
			passed++
		case strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "--- FAIL") || strings.HasPrefix(line, "panic") || strings.Contains(line, "DATA RACE"):
			t.Log(strings.TrimRight(line, "\n"))
		}
	}
	if err != nil {
		t.Errorf("outside the process: %v; it ended with\n%s", err, out[max(0, len(out)-4000):])
	}
	if passed < want {
		t.Errorf("only %d tests ran", passed)
	}
}

// left returns the time limit for a part of this test. It ends before the test does, so that
// its output shows the slow part.
func left(t *testing.T) time.Duration {
	if at, ok := t.Deadline(); ok {
		return time.Until(at) * 9 / 10
	}
	return time.Hour
}
