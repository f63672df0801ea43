package doctor

import "syscall"

// timeError is the state of the kernel's clock without synchronization.
const timeError = 5

// clockSynchronized reports whether the clock is synchronized, and whether that is known.
func clockSynchronized() (synchronized, known bool) {
	var t syscall.Timex
	state, err := syscall.Adjtimex(&t)
	return state != timeError, err == nil
}

// openFiles returns how many files a process may open.
func openFiles() (uint64, error) {
	var l syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l)
	return l.Max, err // Go programs raise their limit to the maximum
}
