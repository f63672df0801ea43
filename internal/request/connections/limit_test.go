package connections

import "testing"

// Connections leave files to the server, and half of them if there are few.
func TestMaxConnections(t *testing.T) {
	for files, want := range map[uint64]int{200: 100, 1024: 512, 20_000: 11_808, 1 << 20: 1<<20 - reservedFiles, 1<<64 - 1: 1 << 20} {
		if got := maxConnections(files); got != want {
			t.Errorf("of %d files: %d connections, want %d", files, got, want)
		}
	}
}
