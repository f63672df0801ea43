package stock

import "syscall"

// tied makes the kernel kill a child when this program dies. It also keeps the terminal's
// interrupt from the children.
func tied() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
