package remote

import (
	"errors"
	"fmt"

	"github.com/unforked/kcp/internal/cluster"
)

// A workspaceError is an error about one workspace.
type workspaceError struct {
	path cluster.Path
	err  error
}

func (e *workspaceError) Error() string { return e.err.Error() }

func (e *workspaceError) Unwrap() error { return e.err }

// About returns an error, in the format of fmt.Errorf, that knows which workspace it is
// about.
func About(path cluster.Path, format string, args ...any) error {
	return &workspaceError{path, fmt.Errorf(format, args...)}
}

// WorkspaceOf returns the workspace that err is about as the argument of a command,
// with a space before it. Without one, the command is about the current workspace.
func WorkspaceOf(err error) string {
	var of *workspaceError
	if errors.As(err, &of) {
		return " :" + string(of.path)
	}
	return ""
}
