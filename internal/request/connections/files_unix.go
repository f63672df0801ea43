//go:build unix

package connections

import "syscall"

// maxFiles returns the maximum number of open files of the process, and whether there is one.
func maxFiles() (uint64, bool) {
	var limit syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
	return uint64(limit.Cur), err == nil
}
