package connections

import (
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// Limits of requests that a client abandons: it resets them before they are served. They cost
// time that no other limit counts.
const (
	abandonedSoon = time.Second // a request that ends later was not abandoned at once
	maxAbandoned  = 20          // of a connection in each second
	abandonedRest = time.Second // for which the server then reads nothing
)

// Limits of the bytes of a connection that belong to no request: frames of HTTP/2 that reset,
// acknowledge or configure, and requests that no handler gets. HTTP/2 drops the latter for a
// second after it has refused a connection, and decoding them takes a processor.
const (
	idleRate    = 256 << 10 // bytes in each second
	idleBurst   = 256 << 10
	requestSize = 8 << 10 // bytes that each request may have besides its body
	ackShare    = 32      // a client acknowledges what it reads with less than one byte in so many
)

// LimitReads returns a listener whose connections [WithReadLimits] limits.
func LimitReads(l net.Listener) net.Listener { return limitedListener{l} }

type limitedListener struct{ net.Listener }

// Accept implements [net.Listener].
func (l limitedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &limitedConn{Conn: c, closed: make(chan struct{}), credit: idleBurst, counted: time.Now()}, nil
}

// WithReadLimits counts the requests of each connection of [LimitReads]. The server does not read a
// connection for a while if its client abandons many requests, as in an HTTP/2 rapid reset attack,
// or sends many bytes that belong to no request.
func WithReadLimits(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		at, ok := req.Context().Value(http.LocalAddrContextKey).(limitedAddr)
		if !ok { // a request of this process
			next.ServeHTTP(w, req)
			return
		}
		begun := time.Now()
		if req.Context().Err() == nil {
			next.ServeHTTP(w, at.conn.begin(req))
		}
		if req.Context().Err() != nil && time.Since(begun) < abandonedSoon {
			at.conn.abandon()
		}
	})
}

// limitedAddr is the local address of a connection. The HTTP server puts it into the context of
// each request, which is how a request finds its connection.
type limitedAddr struct {
	net.Addr
	conn *limitedConn
}

// A limitedConn rests before it reads on, after too many abandoned requests or other bytes.
type limitedConn struct {
	net.Conn
	once   sync.Once
	closed chan struct{}

	mu        sync.Mutex
	since     time.Time // begin of the second that is counted
	abandoned int       // requests in that second
	free      bool      // whether only abandoned requests count
	credit    int       // bytes that may be read without a rest; below 0 after larger reads
	counted   time.Time // until when idleRate is in credit
}

// LocalAddr implements [net.Conn].
func (c *limitedConn) LocalAddr() net.Addr { return limitedAddr{c.Conn.LocalAddr(), c} }

// Read implements [net.Conn].
func (c *limitedConn) Read(b []byte) (int, error) {
	if rest := c.rests(); rest > 0 {
		timer := time.NewTimer(rest)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-c.closed:
		}
	}
	n, err := c.Conn.Read(b)
	c.add(-n)
	return n, err
}

// Write implements [net.Conn].
func (c *limitedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.add(n / ackShare)
	return n, err
}

// Close implements [net.Conn].
func (c *limitedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// begin counts a request that has begun, and returns it with a body that counts what is read. A
// connection of HTTP/1 serves one request at a time, and may be upgraded: it has no limit.
func (c *limitedConn) begin(req *http.Request) *http.Request {
	if req.ProtoMajor == 1 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.free = true
		return req
	}
	c.add(requestSize)
	if req.Body == nil || req.Body == http.NoBody {
		return req
	}
	counted := *req
	counted.Body = limitedBody{req.Body, c}
	return &counted
}

// limitedBody is the body of a request.
type limitedBody struct {
	io.ReadCloser
	conn *limitedConn
}

// Read implements [io.Reader]. The connection has read more bytes: headers of frames and of TLS.
func (b limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.conn.add(n + n/8 + 64)
	return n, err
}

// add adds bytes to the credit.
func (c *limitedConn) add(bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.credit = min(c.credit+bytes, 4*idleBurst)
}

// abandon counts an abandoned request.
func (c *limitedConn) abandon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.since) >= time.Second {
		c.since, c.abandoned = now, 0
	}
	c.abandoned++
}

// rests returns how long the connection rests before the next read. After too many abandoned
// requests it begins their count anew.
func (c *limitedConn) rests() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.abandoned > maxAbandoned {
		c.abandoned = 0
		return abandonedRest
	}
	if c.free {
		return 0
	}
	now := time.Now()
	if c.credit < idleBurst {
		c.credit = min(idleBurst, c.credit+int(float64(idleRate)*min(now.Sub(c.counted), time.Hour).Seconds()))
	}
	c.counted = now
	return time.Duration(max(0, -c.credit)) * time.Second / idleRate
}
