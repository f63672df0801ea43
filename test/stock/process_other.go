//go:build !linux

package stock

import "syscall"

// tied returns nil: only Linux can end a child with its parent. On other systems the
// program builds, but it cannot measure without /proc.
func tied() *syscall.SysProcAttr { return nil }
