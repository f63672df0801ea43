package workspaces

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/output"
)

// TestInterruptedBrowser checks that Ctrl-C ends a command like the signal does. A terminal in raw
// mode sends it as a key.
func TestInterruptedBrowser(t *testing.T) {
	t.Parallel()
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	user, tty := os.NewFile(uintptr(ends[0]), "user"), os.NewFile(uintptr(ends[1]), "tty")
	t.Cleanup(func() {
		if err := errors.Join(user.Close(), tty.Close()); err != nil {
			t.Error(err)
		}
	})
	if _, err := user.WriteString("j\x03"); err != nil {
		t.Fatal(err)
	}
	chosen, err := browse(t.Context(), forest("root:a"), "root", "root").run(t.Context(), tty)
	if chosen || !errors.Is(err, command.ErrInterrupted) {
		t.Errorf("got %v, %v", chosen, err)
	}
	if code := command.Finish(t.Context(), output.New(genericiooptions.NewTestIOStreamsDiscard()), err); code != command.Interrupted {
		t.Errorf("exit code %d, want %d", code, command.Interrupted)
	}
}
