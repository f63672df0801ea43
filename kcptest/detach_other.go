//go:build !unix

package kcptest

import "os/exec"

func detach(*exec.Cmd) {}
