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

// outsideServers names, in the environment of a run of this test binary, the etcd that
// its stores are on. Without it each has its own, in the process.
const outsideServers = "STORE_TEST_SERVERS"

// here returns o for the etcd that this run is about. Outside, a directory becomes a
// prefix: what was in it is found again there.
func here(o Options) Options {
	servers := os.Getenv(outsideServers)
	if servers == "" {
		return o
	}
	o.Etcd.Servers = strings.Split(servers, ",")
	o.Etcd.CompactionInterval = -1 // tests say themselves when
	o.Prefix = fmt.Sprintf("/%x", sha256.Sum256([]byte(o.Dir)))
	return o
}

// Everything that holds with an etcd in the process holds with one outside, too, but
// for what is about its files.
func TestAllOutside(t *testing.T) {
	if os.Getenv(outsideServers) != "" || testing.Short() {
		t.Skip("run by the long tests, once")
	}
	t.Parallel() // the members have processes of their own
	etcd := etcdtest.Start(t, etcdtest.Options{Members: 3, Steady: true})
	const files = "Outside|UnusableEtcd|ServerHangs|EtcdAway|TestFull|LostLease|Restored|Secured|Several|Killed|Writer|DamagedFiles|Directory|Format|OpenCalledOff|FirstStart|Used|FailedOpen|CompactionInterval|Prefixes|ForceNew|Leaderless"
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.skip="+files, "-test.v", "-test.timeout="+left(t).String())
	cmd.Env = append(os.Environ(), outsideServers+"="+strings.Join(etcd.Servers(), ","))
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
	if passed < 30 {
		t.Errorf("only %d tests ran", passed)
	}
}

// left is how long a part of this test may take, so that it, and not this, tells what took
// too long.
func left(t *testing.T) time.Duration {
	if at, ok := t.Deadline(); ok {
		return time.Until(at) * 9 / 10
	}
	return time.Hour
}
