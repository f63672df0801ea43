// Package logs writes log lines without blocking requests, and limits their rate. It hides
// the buffer and the accounting of dropped lines.
package logs

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Bounds of a [Sink].
const (
	maxWaiting = 1 << 20 // bytes of buffered lines
	lineRate   = 200     // lines per second, sustained
	lineBurst  = 2_000
	flushTime  = 2 * time.Second // maximum wait of Sync and Close
)

// A Form is the format of a [Sink]. The zero value is text at the lowest verbosity.
type Form struct {
	All  bool // verbose lines are wanted, so only the buffer is limited and not the rate
	JSON bool
}

// A Sink is a writer of log lines that never waits for the writer behind it. It drops lines
// while its buffer is full or the rate exceeds 200 lines per second, and then writes the
// number of dropped lines.
type Sink struct {
	to       io.Writer
	form     Form
	limit    *rate.Limiter
	wake     chan struct{} // has a token while the goroutine has work
	finished chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex
	waiting [][]byte
	bytes   int
	dropped int
	synced  []chan struct{} // closed when the buffer is written
	closed  bool
}

// NewSink returns a sink that writes to a file or terminal. The caller must close it.
func NewSink(to io.Writer, form Form) *Sink {
	s := &Sink{to: to, form: form, limit: rate.NewLimiter(lineRate, lineBurst), wake: make(chan struct{}, 1), finished: make(chan struct{})}
	go s.run() // ends with Close
	return s
}

// Write buffers or drops one line. It never blocks and never fails.
func (s *Sink) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.bytes+len(line) > maxWaiting || !s.form.All && !s.limit.Allow() {
		s.dropped++
		return len(line), nil
	}
	s.waiting = append(s.waiting, bytes.Clone(line))
	s.bytes += len(line)
	s.signal()
	return len(line), nil
}

// signal wakes the goroutine. The caller holds the lock.
func (s *Sink) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Sync returns when all earlier lines are written. After two seconds it returns an error.
func (s *Sink) Sync() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	done := make(chan struct{})
	s.synced = append(s.synced, done)
	s.signal()
	s.mu.Unlock()
	return within(done)
}

// Close writes the buffer and ends the sink. If the writer blocks for two seconds, it
// returns an error.
func (s *Sink) Close() error {
	s.mu.Lock()
	s.closed = true
	s.signal()
	s.mu.Unlock()
	return within(s.finished)
}

func within(done chan struct{}) error {
	timeout := time.NewTimer(flushTime)
	defer timeout.Stop()
	select {
	case <-done:
		return nil
	case <-timeout.C:
		return fmt.Errorf("the log could not be written within %s", flushTime)
	}
}

// run writes lines until the sink is closed.
func (s *Sink) run() {
	defer close(s.finished)
	for range s.wake {
		b := s.take()
		for _, line := range b.lines {
			_, _ = s.to.Write(line) // there is no other log for the error
		}
		if b.dropped > 0 {
			_, _ = io.WriteString(s.to, s.form.note(b.dropped, time.Now()))
		}
		for _, done := range b.synced {
			close(done)
		}
		if b.closed {
			return
		}
	}
}

// A batch is the buffered work of the goroutine.
type batch struct {
	lines   [][]byte
	dropped int
	synced  []chan struct{}
	closed  bool
}

func (s *Sink) take() batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := batch{s.waiting, s.dropped, s.synced, s.closed}
	s.waiting, s.bytes, s.dropped, s.synced = nil, 0, 0, nil
	return b
}

// note returns the line with the number of dropped lines.
func (f Form) note(dropped int, now time.Time) string {
	if f.JSON {
		return fmt.Sprintf(`{"ts":%d,"msg":"Dropped log lines: there were too many","lines":%d}`+"\n", now.UnixMilli(), dropped)
	}
	return fmt.Sprintf("W%s       0 sink.go:1] \"Dropped log lines: there were too many\" lines=%d\n", now.Format("0102 15:04:05.000000"), dropped)
}
