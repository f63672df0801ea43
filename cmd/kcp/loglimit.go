package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/upstream/texts"
)

// Limits of the warnings and errors that one line of the source logs.
const (
	logBurst    = 10
	logInterval = 5 * time.Second // between two more
)

// A logLimiter writes the text log. At the lowest verbosity it leaves out information, and
// warnings and errors of which one line of the source logs too many: users can cause some
// of the libraries' errors with each request, such as an invalid patch.
type logLimiter struct {
	to      io.Writer
	verbose func() bool
	now     func() time.Time

	mu    sync.Mutex
	lines map[string]*limitedLine // by file and line of the source
}

// limitedLine is the state of one line of the source.
type limitedLine struct {
	*rate.Limiter
	left int // out since the last that was written
}

// newLogLimiter returns the writer of the text log. If all is true, files log more than
// others by --vmodule, and nothing is left out.
func newLogLimiter(all bool) *logLimiter {
	return &logLimiter{
		to: os.Stderr, now: time.Now, lines: map[string]*limitedLine{},
		verbose: func() bool { return all || klog.V(1).Enabled() },
	}
}

// Write implements [io.Writer]. It gets one entry of the log.
func (l *logLimiter) Write(entry []byte) (int, error) {
	var severity byte
	if len(entry) > 0 {
		severity = entry[0]
	}
	switch severity {
	case 'I':
		if !l.verbose() {
			return len(entry), nil
		}
		return l.to.Write(entry)
	case 'W', 'E':
	default: // klog itself writes fatal entries and stacks to standard error
		return len(entry), nil
	}
	if l.verbose() {
		return l.to.Write(entry)
	}
	if texts.UnmanagedFields(string(entry)) { // the error of a user, who is told
		return len(entry), nil
	}
	left, ok := l.allow(sourceOf(entry))
	if !ok {
		return len(entry), nil
	}
	text := entry
	if left > 0 {
		text = fmt.Appendf(nil, "%s (and %d more of this line of the source were left out)\n", bytes.TrimRight(entry, "\n"), left)
	}
	if _, err := l.to.Write(text); err != nil {
		return 0, err
	}
	return len(entry), nil
}

// allow reports whether a line of the source may log now, and how much of it was left out.
func (l *logLimiter) allow(source string) (left int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := l.lines[source]
	if line == nil {
		line = &limitedLine{Limiter: rate.NewLimiter(rate.Every(logInterval), logBurst)}
		l.lines[source] = line
	}
	if !line.AllowN(l.now(), 1) {
		line.left++
		return 0, false
	}
	left, line.left = line.left, 0
	return left, true
}

// sourceOf returns the file and line that an entry comes from, as in status.go:71. An entry
// is like "E1122 07:10:51.133577   21348 status.go:71] message". Panics count as a line of
// their own, so that users cannot hide them behind errors of the same line.
func sourceOf(entry []byte) string {
	header, _, found := bytes.Cut(entry, []byte("] "))
	if !found {
		return "" // entries without a header share a limit
	}
	source := string(header[bytes.LastIndexByte(header, ' ')+1:])
	if texts.LatePanic(string(entry)) {
		source += " panic"
	}
	return source
}
