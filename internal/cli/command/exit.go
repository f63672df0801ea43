package command

import (
	"context"
	"errors"

	"github.com/unforked/kcp/internal/cli/output"
)

// Exit codes. An interrupted command exits as a shell reports one that SIGINT ended.
const (
	failed      = 1
	Interrupted = 130
)

// ErrInterrupted is the error of a command that Ctrl-C ended while it read keys from a
// terminal: the terminal sends no signal then.
var ErrInterrupted = errors.New("interrupted")

// Finish prints err, if there is one, and returns the exit code.
func Finish(ctx context.Context, p *output.Printer, err error) int {
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil, errors.Is(err, ErrInterrupted):
		p.Note("interrupted")
		return Interrupted
	}
	p.Note("error: %v", err)
	return failed
}
