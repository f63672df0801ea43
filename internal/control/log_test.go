package control

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
)

// lines keeps what is logged.
type lines struct {
	mu     sync.Mutex
	logged []string
}

// a sink of a logger that has values already
type valued struct {
	*lines
	values string
}

func (l *lines) Init(logr.RuntimeInfo)           {}
func (l *lines) Enabled(int) bool                { return true }
func (l *lines) WithName(string) logr.LogSink    { return l }
func (l *lines) Info(_ int, m string, kv ...any) { l.add(m, kv) }
func (l *lines) Error(err error, m string, kv ...any) {
	l.add(m, append([]any{err}, kv...))
}
func (l *lines) WithValues(kv ...any) logr.LogSink { return valued{l, fmt.Sprintln(kv...)} }

func (v valued) Info(_ int, m string, kv ...any) { v.add(m, append([]any{v.values}, kv...)) }
func (v valued) Error(err error, m string, kv ...any) {
	v.add(m, append([]any{v.values, err}, kv...))
}
func (v valued) WithValues(kv ...any) logr.LogSink {
	return valued{v.lines, v.values + fmt.Sprintln(kv...)}
}

func (l *lines) add(m string, values []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.logged = append(l.logged, m+" "+fmt.Sprintln(values...))
}

// want checks that a line begins with a message and holds the parts.
func (l *lines) want(t *testing.T, message string, parts ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.logged {
		found := strings.HasPrefix(line, message)
		for _, p := range parts {
			found = found && strings.Contains(line, p)
		}
		if found {
			return
		}
	}
	t.Errorf("no line %q with %q in\n%s", message, parts, strings.Join(l.logged, "\n"))
}
