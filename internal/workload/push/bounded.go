package push

import (
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/unforked/kcp/internal/dial"
	"github.com/unforked/kcp/internal/workload/engine"
)

// mostBytes is the maximum of a response of a physical cluster, except for watches, whose events
// client-go limits. Lists have smaller pages if one is too large.
const mostBytes = 8 << 20

// mostReading is the maximum of bytes of responses that are being read for the physical clusters of a tenant.
const mostReading = 64 << 20

// bounded is a transport that limits responses: a tenant decides which server answers.
type bounded struct {
	through http.RoundTripper
	reading *atomic.Int64 // bytes of responses that are being read; nil if they are few
}

// RoundTrip implements [http.RoundTripper].
func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.through.RoundTrip(req)
	if err != nil || req.URL.Query().Get("watch") == "true" {
		return resp, err
	}
	resp.Body = &limitedBody{ReadCloser: resp.Body, left: mostBytes, reading: b.reading}
	return resp, nil
}

type limitedBody struct {
	io.ReadCloser
	left    int64
	reading *atomic.Int64
	read    int64
	closed  bool
}

// Read implements [io.Reader].
func (l *limitedBody) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, fmt.Errorf("%w: it has more than %d MiB", engine.ErrTooLarge, mostBytes>>20)
	}
	n, err := l.ReadCloser.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	if l.reading == nil {
		return n, err
	}
	l.read += int64(n)
	if l.reading.Add(int64(n)) > mostReading {
		return 0, fmt.Errorf("the physical clusters of the owner answer with too much at once: %w", dial.ErrBusy)
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
