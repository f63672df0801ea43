package storetest

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/unforked/kcp/internal/storage/etcdtest"
)

// servers is the environment variable with the etcd for all stores of a run. Without it, each
// store has an embedded etcd.
const servers = "STORE_TEST_SERVERS"

// Outside returns the external etcd for the stores of this run, and nothing if each has an
// embedded etcd. Each directory becomes a prefix, so that a store finds its data again.
func Outside(dir string) (at []string, prefix string) {
	all := os.Getenv(servers)
	if all == "" {
		return nil, ""
	}
	return strings.Split(all, ","), fmt.Sprintf("/%x", sha256.Sum256([]byte(dir)))
}

// Nightly reports whether the tests run in full.
func Nightly() bool { return os.Getenv("NIGHTLY") != "" }

// A Selection selects tests of this binary by regular expressions.
type Selection struct {
	Sample string // the tests of a short run; all tests run at night
	Skip   string
	// Want is the least number of tests to run, AtNight that of a nightly run.
	Want, AtNight int
}

// RunOutside runs tests of this binary again, with an external etcd.
func RunOutside(t *testing.T, s Selection) {
	t.Helper()
	if os.Getenv(servers) != "" || testing.Short() {
		t.Skip("run by the long tests, once")
	}
	t.Parallel() // the members have their own processes
	members := etcdtest.Start(t, etcdtest.Options{Members: 3, Steady: true})
	sample, want := s.Sample, s.Want
	if Nightly() {
		sample, want = ".", s.AtNight
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run="+sample, "-test.skip="+s.Skip, "-test.v", "-test.timeout="+left(t).String())
	cmd.Env = append(os.Environ(), servers+"="+strings.Join(members.Servers(), ","))
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

// left returns the time limit for a part of a test. It ends before the test does, so that its
// output shows the slow part.
func left(t *testing.T) time.Duration {
	if at, ok := t.Deadline(); ok {
		return time.Until(at) * 9 / 10
	}
	return time.Hour
}
