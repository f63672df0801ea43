package kcptest

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
)

// A tempDir is a temporary directory that is removed when the process ends, however it
// ends. Go runs nothing at the end of a process, so a child process does it: it waits for
// the end of a pipe that this process holds open.
type tempDir struct {
	path  string
	child *exec.Cmd
	pipe  io.Closer
}

// newTempDir returns a new temporary directory.
func newTempDir() (*tempDir, error) {
	path, err := os.MkdirTemp("", "kcptest-")
	if err != nil {
		return nil, err
	}
	d := &tempDir{path: path}
	if runtime.GOOS == "windows" {
		return d, nil // has no shell, and removes no open files: there only Close removes it
	}
	d.child = exec.Command("/bin/sh", "-c", `read -r _; exec rm -rf "$1"`, "sh", path)
	detach(d.child)
	if d.pipe, err = d.child.StdinPipe(); err == nil {
		err = d.child.Start()
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	return d, nil
}

// remove removes the directory now.
func (d *tempDir) remove() error {
	if d.child == nil {
		return os.RemoveAll(d.path)
	}
	return errors.Join(d.pipe.Close(), d.child.Wait())
}
