package flow

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/unforked/kcp/internal/request/fair"
)

// stalledAfter is how long the client of a watch may leave a part of the response unread. Then the
// watch ends: its events wait in the memory of the server meanwhile. An honest client resumes it.
const stalledAfter = time.Minute

// maxReceived is what the client of a watch over WebSocket may send, in all: pings, and the end. Upstream keeps
// a frame in memory until the client has sent all of it, which may be up to 32 MiB.
const maxReceived = 64 << 10

// A watchWriter is the response of a watch. It fails if the client does not read, and waits if the
// watches of the tenant deliver too many events.
type watchWriter struct {
	http.ResponseWriter
	ctx   context.Context // of the request
	work  *fair.Work
	after time.Duration

	mu      sync.Mutex
	writing bool // guarded by mu
}

var (
	_ http.Flusher  = (*watchWriter)(nil)
	_ http.Hijacker = (*watchWriter)(nil)
)

// Unwrap lets [http.ResponseController] find the writer of the server.
func (w *watchWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements [http.ResponseWriter]. Upstream's handlers write an event at a time.
func (w *watchWriter) Write(b []byte) (int, error) {
	if err := w.work.Deliver(w.ctx); err != nil {
		return 0, err
	}
	defer w.begin()()
	return w.ResponseWriter.Write(b)
}

// Flush implements [http.Flusher].
func (w *watchWriter) Flush() { _ = w.FlushError() }

// FlushError is Flush for [http.ResponseController].
func (w *watchWriter) FlushError() error {
	defer w.begin()()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// begin lets the write that follows fail after a while, unless end was called.
func (w *watchWriter) begin() (end func()) {
	w.mu.Lock()
	w.writing = true
	w.mu.Unlock()
	late := time.AfterFunc(w.after, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.writing { // the writer of the server must not be used after the handler
			_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Unix(1, 0))
		}
	})
	return func() {
		late.Stop()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.writing = false
	}
}

// CloseNotify implements the deprecated http.CloseNotifier, without which upstream's handlers wrap no
// writer.
func (w *watchWriter) CloseNotify() <-chan bool {
	if inner, ok := w.ResponseWriter.(interface{ CloseNotify() <-chan bool }); ok {
		return inner.CloseNotify()
	}
	return nil
}

// Hijack implements [http.Hijacker], for watches over WebSocket.
func (w *watchWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, both, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return conn, both, err
	}
	read := &watchConn{conn, w}
	both.Writer.Reset(read)
	return read, bufio.NewReadWriter(bufio.NewReader(io.LimitReader(both.Reader, maxReceived)), both.Writer), nil
}

// A watchConn is a connection of a watch, whose writes wait and fail like those of the writer.
type watchConn struct {
	net.Conn
	of *watchWriter
}

// Write implements [net.Conn].
func (c *watchConn) Write(b []byte) (int, error) {
	if err := c.of.work.Deliver(c.of.ctx); err != nil {
		return 0, err
	}
	if err := c.SetWriteDeadline(time.Now().Add(c.of.after)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}
