package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/unforked/kcp/internal/cluster"
)

// A printer prints everything that users see. Results go to standard output, messages
// about them to standard error.
type printer struct {
	out, err io.Writer
}

func newPrinter(streams genericiooptions.IOStreams) *printer {
	return &printer{streams.Out, streams.ErrOut}
}

// say prints a line of result.
func (p *printer) say(format string, args ...any) { p.line(p.out, format, args) }

// note prints a message.
func (p *printer) note(format string, args ...any) { p.line(p.err, format, args) }

func (p *printer) line(w io.Writer, format string, args []any) {
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

// current prints the path of the current workspace, and its type if that is known.
func (p *printer) current(path cluster.Path, typ string, short bool) {
	switch {
	case short:
		p.say("%s", path)
	case typ == "":
		p.say("Current workspace is '%s'.", path)
	default:
		p.say("Current workspace is '%s' (type %s).", path, typ)
	}
}

// table prints rows with their columns aligned.
func (p *printer) table(rows [][]string) {
	w := tabwriter.NewWriter(p.out, 0, 8, 3, ' ', 0)
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
