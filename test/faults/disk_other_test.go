//go:build !linux

package faults

// onDisk returns: disks of tests are for Linux.
func onDisk() {}
