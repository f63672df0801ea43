package flow

import (
	"bufio"
	"net"
	"net/http"
	"sync"
	"time"
)

// stalledAfter is how long the client of a watch may leave a part of the response unread. Then the
// watch ends: its events wait in the memory of the server meanwhile. An honest client resumes it.
const stalledAfter = time.Minute

// A watchWriter is the response of a watch. It fails if the client does not read.
type watchWriter struct {
	http.ResponseWriter
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

// Write implements [http.ResponseWriter].
func (w *watchWriter) Write(b []byte) (int, error) {
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
	if inner, ok := w.ResponseWriter.(http.CloseNotifier); ok { //nolint:staticcheck // see above
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
	read := &readConn{conn, w.after}
	both.Writer.Reset(read)
	return read, both, nil
}

// A readConn is a connection of a watch, whose writes fail if the client does not read.
type readConn struct {
	net.Conn
	after time.Duration
}

// Write implements [net.Conn].
func (c *readConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.after)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}
