// Package output prints what users read, and results in the formats of --output. It hides how
// columns are aligned, and that a terminal would obey control characters.
package output

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/unforked/kcp/internal/cluster"
)

// A Printer prints everything that users see. Results go to standard output, messages
// about them to standard error.
type Printer struct {
	Out, err io.Writer
}

// New returns a printer to the output and error streams.
func New(streams genericiooptions.IOStreams) *Printer {
	return &Printer{streams.Out, streams.ErrOut}
}

// Say prints a line of result.
func (p *Printer) Say(format string, args ...any) { p.line(p.Out, format, args) }

// Note prints a message.
func (p *Printer) Note(format string, args ...any) { p.line(p.err, format, args) }

func (p *Printer) line(w io.Writer, format string, args []any) {
	_, _ = fmt.Fprintln(w, visible(fmt.Sprintf(format, args...))) // the reader may have closed its end
}

// visible returns text without control characters, except for line breaks and tabs. They would
// let users who write a condition or a name change what the terminal of another user shows.
func visible(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// CurrentWorkspace prints the path of the current workspace, and its type if that is known.
func (p *Printer) CurrentWorkspace(path cluster.Path, typ string, short bool) {
	switch {
	case short:
		p.Say("%s", path)
	case typ == "":
		p.Say("Current workspace is '%s'.", path)
	default:
		p.Say("Current workspace is '%s' (type %s).", path, typ)
	}
}

// Table prints rows with their columns aligned.
func (p *Printer) Table(rows [][]string) {
	w := tabwriter.NewWriter(p.Out, 0, 8, 3, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				_, _ = fmt.Fprint(w, "\t")
			}
			_, _ = fmt.Fprint(w, visible(cell))
		}
		_, _ = fmt.Fprintln(w)
	}
	_ = w.Flush()
}
