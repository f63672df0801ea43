package conformance

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/unforked/kcp"
)

// The typed clients of the existing kcp, its cluster-aware informers and its providers for
// multicluster-runtime, unmodified, work with this server. Their build takes minutes, so the test
// runs only in the long form.
func TestExistingClients(t *testing.T) {
	if !wanted("long") {
		t.Skip("clients of the existing kcp are built and run by make conformance")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "existing")
	build := exec.CommandContext(t.Context(), "go", "-C", "../tools/existing", "build", "-o", program, ".")
	build.Env = append(build.Environ(), "GOFLAGS=-buildvcs=false") // the rest is built with the race detector
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the clients: %v\n%s", err, out)
	}
	srv := &kcp.Server{Dir: dir, Listen: "127.0.0.1:0", NoSync: true}
	if err := srv.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
	})
	out, err := exec.CommandContext(t.Context(), program, filepath.Join(dir, "admin.kubeconfig")).CombinedOutput()
	if t.Logf("%s", out); err != nil {
		t.Fatal(err)
	}
}
