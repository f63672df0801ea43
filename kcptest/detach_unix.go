//go:build unix

package kcptest

import (
	"os/exec"
	"syscall"
)

// detach keeps signals to the process group, such as Ctrl-C, from cmd.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
