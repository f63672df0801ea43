package push

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/unforked/kcp/internal/network/dial"
	"github.com/unforked/kcp/internal/workload/engine"
)

// mostBytes is the maximum of a response of a physical cluster, except for watches, whose events
// client-go limits to 16 MiB each. Lists have smaller pages if one is too large.
const mostBytes = 8 << 20

// mostProbe is the maximum of a response to a probe, which has one namespace. In memory, it may take a hundred
// times as much, and the probes of many physical clusters run at a time.
const mostProbe = 256 << 10

// mostReading is the maximum of bytes of responses, and of events of watches, that are being read for the
// physical clusters of a tenant.
const mostReading = 64 << 20

var errTooMuch = fmt.Errorf("the physical clusters of the owner answer with too much at once: %w", dial.ErrBusy)

// bounded is a transport that limits responses: a tenant decides which server answers.
type bounded struct {
	through http.RoundTripper
	reading *atomic.Int64 // bytes of responses that are being read; nil for probes
}

// RoundTrip implements [http.RoundTripper].
func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.through.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	switch {
	case b.reading == nil:
		resp.Body = &limitedBody{ReadCloser: resp.Body, left: mostProbe, most: mostProbe}
	case req.URL.Query().Get("watch") != "true":
		resp.Body = &limitedBody{ReadCloser: resp.Body, left: mostBytes, most: mostBytes, reading: b.reading}
	default:
		resp.Body = &watchedBody{ReadCloser: resp.Body, reading: b.reading}
	}
	return resp, nil
}

type limitedBody struct {
	io.ReadCloser
	left    int64
	most    int64
	reading *atomic.Int64
	read    int64
	closed  bool
}

// Read implements [io.Reader].
func (l *limitedBody) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, fmt.Errorf("%w: it has more than %d KiB", engine.ErrTooLarge, l.most>>10)
	}
	n, err := l.ReadCloser.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	if l.reading == nil {
		return n, err
	}
	l.read += int64(n)
	if l.reading.Add(int64(n)) > mostReading {
		return 0, errTooMuch
	}
	return n, err
}

// Close implements [io.Closer].
func (l *limitedBody) Close() error {
	if l.reading != nil && !l.closed {
		l.closed = true
		l.reading.Add(-l.read)
	}
	return l.ReadCloser.Close()
}

// A watchedBody counts the event of a watch that is being read. A line ends an event, as in all answers of
// Kubernetes in JSON; without lines, everything counts.
type watchedBody struct {
	io.ReadCloser
	reading *atomic.Int64

	mu     sync.Mutex // a watch is closed while it is read
	event  int64      // bytes that count; guarded by mu
	ended  int64      // those of events that ended with the last read; guarded by mu
	closed bool       // guarded by mu
}

// Read implements [io.Reader].
func (w *watchedBody) Read(p []byte) (int, error) {
	w.give(false) // who reads on has decoded the events before
	n, err := w.ReadCloser.Read(p)
	if !w.take(p[:n]) {
		return 0, errTooMuch
	}
	return n, err
}

// take counts what was read, and reports whether that is not too much.
func (w *watchedBody) take(read []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return true
	}
	w.event += int64(len(read))
	if end := bytes.LastIndexByte(read, '\n'); end >= 0 {
		w.ended = w.event - int64(len(read)-end-1)
	}
	return w.reading.Add(int64(len(read))) <= mostReading
}

// give takes back what events count that have ended, or all if the watch is closed.
func (w *watchedBody) give(closed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if closed {
		w.ended, w.closed = w.event, true
	}
	w.reading.Add(-w.ended)
	w.event, w.ended = w.event-w.ended, 0
}

// Close implements [io.Closer].
func (w *watchedBody) Close() error {
	w.give(true)
	return w.ReadCloser.Close()
}
