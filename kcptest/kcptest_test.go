package kcptest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/unforked/kcp/kcptest"
)

// inner makes TestUsed run in a process of its own.
const inner = "KCPTEST_INNER"

// TestUsed is the inner process of TestLeavesNothing: tests that share a server which they
// do not close. With "kill", the process ends without returning.
func TestUsed(t *testing.T) {
	how := os.Getenv(inner)
	if how == "" {
		t.Skip("TestLeavesNothing runs it")
	}
	if c := kcptest.New(t); c.Name == "" {
		t.Error("the cluster has no name")
	}
	if found, err := os.ReadDir(os.TempDir()); err != nil || len(found) == 0 {
		t.Errorf("the server has no temporary directory: %v, %v", found, err)
	}
	if how == "kill" {
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Kill()
		}
		t.Fatal(err)
	}
}

// TestLeavesNothing checks that a test binary leaves nothing in the temporary folder, after
// it returned and after it was killed.
func TestLeavesNothing(t *testing.T) {
	for _, how := range []string{"return", "kill"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestUsed$")
			cmd.Env = append(os.Environ(), inner+"="+how, "TMPDIR="+dir)
			if out, err := cmd.CombinedOutput(); (err != nil) != (how == "kill") {
				t.Fatalf("%v\n%s", err, out)
			}
			awaitEmpty(t, dir)
		})
	}
}

// TestCloseRemoves checks that Close removes the directory before it returns.
func TestCloseRemoves(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	u := &kcptest.Universe{}
	u.New(t)
	if err := u.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// awaitEmpty waits until there is nothing in dir.
func awaitEmpty(t *testing.T, dir string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(kcptest.DefaultTimeout)
	for {
		left, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("left behind: %v", left)
		}
	}
}
