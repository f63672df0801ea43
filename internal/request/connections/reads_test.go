package connections

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// oneConn is a listener with a single connection.
type oneConn struct {
	net.Listener
	conn net.Conn
}

func (l oneConn) Accept() (net.Conn, error) { return l.conn, nil }

// TestConnectionsOfAbandonedRequestsRest shows that the server stops reading from a client which
// abandons many requests in a second, and from no other.
func TestConnectionsOfAbandonedRequestsRest(t *testing.T) {
	for name, c := range map[string]struct {
		requests int
		lasting  time.Duration // of each request, before the client abandons it
		served   bool
		rests    time.Duration
	}{
		"few":    {requests: maxAbandoned},
		"many":   {requests: maxAbandoned + 1, rests: abandonedRest},
		"flood":  {requests: 100_000, rests: abandonedRest},
		"served": {requests: 1000, served: true},
		"late":   {requests: 200, lasting: abandonedSoon},
		"slow":   {requests: 1000, lasting: time.Second / maxAbandoned},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, conn := limited(t)
				defer conn.Close()
				for range c.requests {
					ctx, abandon := context.WithCancel(context.WithValue(t.Context(), http.LocalAddrContextKey, conn.LocalAddr()))
					req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
					if err != nil {
						t.Fatal(err)
					}
					WithReadLimits(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
						time.Sleep(c.lasting)
						if !c.served {
							abandon()
						}
					})).ServeHTTP(nil, req)
					abandon()
				}
				go func() { _, _ = client.Write([]byte("x")) }()
				begun := time.Now()
				if _, err := conn.Read(make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
				if waited := time.Since(begun); waited != c.rests {
					t.Errorf("the read began after %s, want %s", waited, c.rests)
				}
			})
		})
	}
}

// limited returns the two ends of a connection, of which the server's has limits.
func limited(t *testing.T) (client, conn net.Conn) {
	t.Helper()
	client, served := net.Pipe()
	conn, err := LimitReads(oneConn{conn: served}).Accept()
	if err != nil {
		t.Fatal(err)
	}
	return client, conn
}

// TestRestingConnectionsClose shows that Close ends a rest.
func TestRestingConnectionsClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, conn := limited(t)
		for range 2 * maxAbandoned {
			conn.LocalAddr().(limitedAddr).conn.abandon()
		}
		begun := time.Now()
		go func() { _ = conn.Close() }()
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("a read of a closed connection has no error")
		}
		if waited := time.Since(begun); waited != 0 {
			t.Errorf("the read ended after %s", waited)
		}
	})
}

// TestConnectionsRestBeforeOtherBytes shows that a connection rests before it reads what belongs
// to no request, and at no other time.
func TestConnectionsRestBeforeOtherBytes(t *testing.T) {
	const sent = 8 << 20
	for name, c := range map[string]struct {
		major int // version of HTTP; 0 without a request
		body  bool
		wrote int // bytes of responses
		rests time.Duration
	}{
		"no request":       {rests: (sent - idleBurst) * time.Second / idleRate},
		"HTTP/1":           {major: 1},
		"HTTP/2, a body":   {major: 2, body: true},
		"HTTP/2, answers":  {major: 2, wrote: 2 * ackShare * idleBurst, rests: (sent - 3*idleBurst - requestSize) * time.Second / idleRate},
		"HTTP/2, no body":  {major: 2, rests: (sent - idleBurst - requestSize) * time.Second / idleRate},
		"HTTP/1, upgraded": {major: 1, body: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, conn := limited(t)
				defer conn.Close()
				go func() {
					_, _ = io.CopyN(io.Discard, client, int64(c.wrote))
					_, _ = client.Write(make([]byte, sent))
				}()
				read := func(b []byte) (int, error) { return conn.Read(b) }
				begun := time.Now()
				if c.major > 0 {
					ctx := context.WithValue(t.Context(), http.LocalAddrContextKey, conn.LocalAddr())
					req := (&http.Request{ProtoMajor: c.major, Body: http.NoBody}).WithContext(ctx)
					if c.body {
						req.Body = conn
					}
					WithReadLimits(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
						if c.body {
							read = req.Body.Read
						}
					})).ServeHTTP(nil, req)
				}
				if c.wrote > 0 {
					if _, err := conn.Write(make([]byte, c.wrote)); err != nil {
						t.Fatal(err)
					}
				}
				for left := sent; left > 0; {
					n, err := read(make([]byte, 32<<10))
					if err != nil {
						t.Fatal(err)
					}
					left -= n
				}
				// The last read has no rest after it.
				if waited := time.Since(begun); waited > c.rests || waited < c.rests-time.Second {
					t.Errorf("the reads took %s, want %s", waited, c.rests)
				}
			})
		})
	}
}
