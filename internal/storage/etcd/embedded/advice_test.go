package embedded

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// TestAdvice shows that a full volume is not taken for damaged files.
func TestAdvice(t *testing.T) {
	t.Parallel()
	full := fmt.Errorf("failed to create WAL: %w", syscall.ENOSPC)
	for err, want := range map[error]string{
		full:                       "free space on its volume",
		errors.New(full.Error()):   "free space on its volume",
		errors.New("checksum bad"): "restore a backup",
	} {
		if got := advised(err); !errors.Is(got, err) || !strings.Contains(got.Error(), want) {
			t.Errorf("%v, want %q", got, want)
		}
	}
}
