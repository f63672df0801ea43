package cli

import (
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestUnwritable checks the advice for users who may not write their kubeconfig.
func TestUnwritable(t *testing.T) {
	w := newWorld(t, "root:org")
	file := w.kubeconfig()
	config := load(t, file)
	folder := filepath.Dir(file)
	for _, dir := range []string{folder, filepath.Dir(folder)} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(file, 0o444); err != nil {
		t.Fatal(err)
	}
	var enter, look result
	var nobody sync.WaitGroup
	nobody.Go(func() {
		asNobody(t)
		enter = call(t, file, "kubectl-ws", "org")
		look = call(t, file, "kubectl-ws", "current", "--short")
	})
	nobody.Wait()
	want := "error: cannot write the kubeconfig: open " + file + ": permission denied; work on a copy: cp " + file + " my.kubeconfig && export KUBECONFIG=$PWD/my.kubeconfig\n"
	if enter != (result{err: want, code: 1}) {
		t.Errorf("got %+v, want %s", enter, want)
	}
	if diff := cmp.Diff(config, load(t, file)); diff != "" {
		t.Error(diff)
	}
	if look != (result{out: "root\n"}) {
		t.Errorf("it can be read: %+v", look)
	}
}

// asNobody changes the user of this thread to one without rights, if it is root.
func asNobody(t *testing.T) {
	if os.Geteuid() != 0 {
		return
	}
	runtime.LockOSThread() // for good: the thread ends with the goroutine
	for _, call := range []uintptr{syscall.SYS_SETFSGID, syscall.SYS_SETFSUID} {
		if _, _, errno := syscall.RawSyscall(call, 65534, 0, 0); errno != 0 {
			t.Error(errno)
		}
	}
}
