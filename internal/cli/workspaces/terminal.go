package workspaces

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cluster"
)

// Control sequences that all terminals understand.
const (
	eraseLine  = "\r\x1b[2K"
	eraseBelow = "\r\x1b[J"
	reverse    = "\x1b[7m"
	normal     = "\x1b[m"
)

// lookWithin is the timeout for listing a workspace. The terminal ignores keys meanwhile.
const lookWithin = 10 * time.Second

// choose shows the workspaces below top in the terminal, with the cursor on the workspace
// at. It reports whether the user chose one.
func choose(ctx context.Context, a *command.App, srv *remote.Server, top, at cluster.Path) (cluster.Path, bool, error) {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return "", false, errors.New("-i needs a terminal; without one, run: kubectl ws tree")
	}
	defer func() { _ = tty.Close() }()
	var before *term.State
	if err := control(tty, func(fd int) (err error) { before, err = term.MakeRaw(fd); return err }); err != nil {
		return "", false, fmt.Errorf("-i cannot use the terminal: %w", err)
	}
	defer func() { _ = control(tty, func(fd int) error { return term.Restore(fd, before) }) }()
	b := browse(ctx, srv.List, top, at)
	if b.top.err != nil {
		return "", false, remote.About(top, "cannot list the workspaces in %q: %w", top, b.top.err)
	}
	chosen, err := b.run(ctx, tty)
	return b.at.path, chosen, err
}

// control calls f with the file descriptor of a terminal. Unlike tty.Fd, it leaves the file
// in non-blocking mode, so that a deadline can end a read.
func control(tty *os.File, f func(fd int) error) error {
	conn, err := tty.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) { failed = f(int(fd)) })
	return errors.Join(err, failed)
}

// size returns the columns and lines of a terminal, or the usual ones if it reports none.
func size(tty *os.File) (width, height int) {
	err := control(tty, func(fd int) (err error) { width, height, err = term.GetSize(fd); return err })
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24
	}
	return width, height
}

// run shows b on a terminal until a key closes it.
func (b *browser) run(ctx context.Context, tty *os.File) (chosen bool, err error) {
	stop := context.AfterFunc(ctx, func() { _ = tty.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	s := screen{out: tty}
	defer func() { err = errors.Join(err, s.clear()) }()
	if err := s.draw(b.lines(size(tty))); err != nil {
		return false, err
	}
	var sent []byte
	buffer := make([]byte, 64)
	for {
		n, err := tty.Read(buffer)
		switch {
		case ctx.Err() != nil:
			return false, ctx.Err()
		case errors.Is(err, io.EOF):
			return false, nil
		case err != nil:
			return false, err
		}
		pressed, rest := keys(append(sent, buffer[:n]...))
		sent = append([]byte(nil), rest...)
		for _, k := range pressed {
			looking, cancel := context.WithTimeout(ctx, lookWithin)
			chosen, over := b.press(looking, k)
			cancel()
			if k == keyInterrupt {
				return false, command.ErrInterrupted
			}
			if over {
				return chosen, nil
			}
			if err := s.draw(b.lines(size(tty))); err != nil {
				return false, err
			}
		}
	}
}

// A screen is the lines at the bottom of a terminal that a browser draws.
type screen struct {
	out   io.Writer
	drawn int
}

func (s *screen) draw(lines []string, cursor int) error {
	var text strings.Builder
	text.WriteString(s.up())
	for i, line := range lines {
		if i == cursor {
			line = reverse + line + normal
		}
		text.WriteString(eraseLine + line + "\r\n")
	}
	text.WriteString(eraseBelow)
	s.drawn = len(lines)
	_, err := io.WriteString(s.out, text.String())
	return err
}

// clear leaves the terminal as it was before the first draw.
func (s *screen) clear() error {
	_, err := io.WriteString(s.out, s.up()+eraseBelow)
	s.drawn = 0
	return err
}

func (s *screen) up() string {
	if s.drawn == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA", s.drawn)
}
