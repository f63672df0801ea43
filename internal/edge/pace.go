package edge

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// Limits of requests that a client abandons: it resets them before they are served. They cost
// time that no other limit counts.
const (
	abandonedSoon = time.Second // a request that ends later was not abandoned at once
	abandonedMost = 20          // of a connection in each second
	// abandonedRest is the time for which the server then reads nothing. After an abandoned
	// request, upstream's timeout filter ends the connection, and HTTP/2 then reads and drops
	// all that the client sends, for a second.
	abandonedRest = time.Second
)

// Pace returns a listener whose connections [WithPace] can make rest.
func Pace(l net.Listener) net.Listener { return pacedListener{l} }

type pacedListener struct{ net.Listener }

// Accept implements [net.Listener].
func (l pacedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &pacedConn{Conn: c, closed: make(chan struct{})}, nil
}

// WithPace stops reading, for a while, from connections of [Pace] whose client abandons requests
// again and again, as in an HTTP/2 rapid reset attack.
func WithPace(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		at, ok := req.Context().Value(http.LocalAddrContextKey).(pacedAddr)
		if !ok { // a request of this process
			next.ServeHTTP(w, req)
			return
		}
		begun := time.Now()
		if req.Context().Err() == nil {
			next.ServeHTTP(w, req)
		}
		if req.Context().Err() != nil && time.Since(begun) < abandonedSoon {
			at.conn.abandon()
		}
	})
}

// pacedAddr is the local address of a connection. The HTTP server puts it into the context of
// each request, which is how a request finds its connection.
type pacedAddr struct {
	net.Addr
	conn *pacedConn
}

// A pacedConn rests before it reads on, after too many abandoned requests.
type pacedConn struct {
	net.Conn
	once   sync.Once
	closed chan struct{}

	mu        sync.Mutex
	since     time.Time // begin of the second that is counted
	abandoned int       // requests in that second
}

// LocalAddr implements [net.Conn].
func (c *pacedConn) LocalAddr() net.Addr { return pacedAddr{c.Conn.LocalAddr(), c} }

// Read implements [net.Conn].
func (c *pacedConn) Read(b []byte) (int, error) {
	if c.rests() {
		timer := time.NewTimer(abandonedRest)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-c.closed:
		}
	}
	return c.Conn.Read(b)
}

// Close implements [net.Conn].
func (c *pacedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// abandon counts an abandoned request.
func (c *pacedConn) abandon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.since) >= time.Second {
		c.since, c.abandoned = now, 0
	}
	c.abandoned++
}

// rests reports whether the client has abandoned too many requests. It begins the count anew.
func (c *pacedConn) rests() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.abandoned <= abandonedMost {
		return false
	}
	c.abandoned = 0
	return true
}
