package etcd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
)

// ErrInUse is the error of [LockDir] for a directory that another process has locked.
var ErrInUse = errors.New("in use")

// LockDir creates dir if it does not exist, and locks it for this process.
func LockDir(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w; choose another with --root-directory", err)
	}
	path := filepath.Join(dir, "lock")
	f, err := fileutil.TryLockFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	switch {
	case errors.Is(err, fileutil.ErrLocked):
		holder, _ := os.ReadFile(path) // for the error message only
		return nil, fmt.Errorf("data directory %s is %w by process %s; stop that server, or choose another directory with --root-directory", dir, ErrInUse, strings.TrimSpace(string(holder)))
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return nil, fmt.Errorf("data directory %s is not writable: %w; make it writable, or choose another with --root-directory", dir, err)
	case err != nil:
		return nil, fmt.Errorf("data directory: %w", err)
	}
	err = errors.Join(f.Truncate(0), writeAt0(f.File, fmt.Sprintln(os.Getpid())))
	if err != nil && !errors.Is(err, syscall.ENOSPC) { // on a full disk the process id is missing; only the message above needs it
		_ = f.Close()
		return nil, fmt.Errorf("data directory: %w", err)
	}
	return func() { _ = f.Close() }, nil // closing releases the lock
}

func writeAt0(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}
