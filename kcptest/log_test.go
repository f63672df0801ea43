package kcptest_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestLog checks that the log of a server without a listener contains no address.
func TestLog(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestUsed$")
	cmd.Env = append(os.Environ(), inner+"=return", "TMPDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Contains(string(out), "0.0.0.0") {
		t.Errorf("%v\n%s", err, out)
	}
}
