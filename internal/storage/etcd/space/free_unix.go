//go:build linux || darwin

package space

import (
	"os"
	"syscall"
)

// Free returns the free bytes on the volume of a directory that this process may use.
func Free(dir string) (int64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	//nolint:unconvert // the types differ between systems
	return int64(s.Bavail) * int64(s.Bsize), nil
}
