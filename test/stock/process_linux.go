package stock

import "syscall"

// tied makes the kernel end a server when this program dies without stopping
// it, and keeps a terminal's interrupt from reaching the servers directly.
func tied() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
