//go:build !linux

package stock

import "syscall"

// tied is empty: only Linux ends a child with its parent. The figures come
// from /proc, so other systems build this program but cannot measure with it.
func tied() *syscall.SysProcAttr { return nil }
