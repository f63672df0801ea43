// Package tunnel gives the server a way to physical clusters that only call out. An agent opens a
// connection to the server and asks to upgrade it. From then on, the server is the HTTP/2 client
// on the connection, and the agent the HTTP/2 server. HTTP/2 carries the connections of the server to
// the physical cluster, one per CONNECT request. The agent is an HTTP/1.1 server on them, so that
// requests can be upgraded, and adds its credentials for the physical cluster.
package tunnel

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// Protocol is the protocol that agents upgrade connections to.
const Protocol = "kcp-tunnel"

const (
	ping    = 15 * time.Second // without traffic
	answers = 10 * time.Second // of a ping, before the connection is closed
	// lingers is the time that an agent has to end a connection after the server has closed its end.
	lingers = time.Second
	// most is the number of tunnels of one target: replicas of its agent, and some that are ending. mostOfTenant is that
	// of all targets of a tenant: two for each.
	most, mostOfTenant = 4, 2000
	// unread is how much of a stream the agent may send before it is read, and unreadOfAll how much of all
	// streams of a tunnel: enough that a stream that is read slowly does not delay others.
	unread, unreadOfAll = 512 << 10, 512 << 20
	// header is the maximum of the bytes of a header. The agent is a tenant's.
	header = 64 << 10
)

// ErrTooMany is the error of a tunnel beyond a maximum.
var ErrTooMany = errors.New("too many tunnels")

// ErrNone means that the target has no tunnel to this server.
var ErrNone = errors.New("the agent of the physical cluster is not connected to this server")

// A Pool has the tunnels to this server. The zero value is ready for use.
type Pool struct {
	mu   sync.Mutex
	open map[string][]*Conn // by target, the newest last; guarded by mu
	of   map[string]int     // tunnels of a tenant; guarded by mu
}

// A Target is the physical cluster that a tunnel leads to.
type Target struct {
	Key string
	// Tenant owns the physical cluster.
	Tenant string
}

// A Conn is the tunnel of one target.
type Conn struct {
	client    *http2.ClientConn
	transport *http.Transport
	socket    net.Conn
	ended     chan struct{}
	once      sync.Once
}

func (c *Conn) close() {
	c.once.Do(func() {
		close(c.ended)
		_ = c.socket.Close() // it is of no use either way
	})
}

// A Check says how long a tunnel may be used.
type Check struct {
	// Every is the time between two checks.
	Every time.Duration
	// Valid reports whether the agent may still use the tunnel.
	Valid func(context.Context) bool
	// Stop is closed when the server stops.
	Stop <-chan struct{}
}

// Accept turns the connection of a request into a tunnel of a target, and returns when it has ended.
// It returns an error if there is no tunnel, to be sent as response.
func (p *Pool) Accept(w http.ResponseWriter, req *http.Request, target Target, check Check) error {
	if err := upgradable(req, Protocol); err != nil {
		return err
	}
	if err := p.room(target); err != nil {
		return err
	}
	socket, err := hijack(w, Protocol)
	if err != nil {
		return err
	}
	conn := &Conn{socket: socket, ended: make(chan struct{})}
	defer conn.close()
	socket.ended = conn.close
	t, err := http2.ConfigureTransports(&http.Transport{HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: unread, MaxReceiveBufferPerConnection: unreadOfAll}})
	if err != nil {
		return err
	}
	t.ReadIdleTimeout, t.PingTimeout, t.DisableCompression, t.MaxHeaderListSize = ping, answers, true, header
	if conn.client, err = t.NewClientConn(socket); err != nil {
		return nil //nolint:nilerr // the agent has gone
	}
	conn.transport = &http.Transport{DialContext: conn.dial, IdleConnTimeout: ping, DisableCompression: true, MaxResponseHeaderBytes: header}
	defer conn.transport.CloseIdleConnections()
	if !p.add(target, conn) {
		return nil
	}
	defer p.remove(target, conn)
	tick := time.NewTicker(check.Every)
	defer tick.Stop()
	for {
		select {
		case <-conn.ended:
			return nil
		case <-req.Context().Done():
			return nil
		case <-check.Stop:
			return nil
		case <-tick.C:
			if !check.Valid(req.Context()) {
				return nil
			}
		}
	}
}

func upgradable(req *http.Request, protocol string) error {
	if req.ProtoMajor != 1 || req.Header.Get("Upgrade") != protocol {
		return fmt.Errorf("the request does not upgrade a connection of HTTP/1.1 to %s", protocol)
	}
	return nil
}

// hijack takes over the connection of a request, and agrees to the protocol.
func hijack(w http.ResponseWriter, protocol string) (*watched, error) {
	socket, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	_ = socket.SetDeadline(time.Time{}) // one that is closed fails at its first use
	_, _ = io.WriteString(socket, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+protocol+"\r\n\r\n")
	return &watched{socket, buffered.Reader, func() {}}, nil
}

// A watched connection calls ended when it cannot be read any more.
type watched struct {
	net.Conn
	from  *bufio.Reader
	ended func()
}

// Read implements [net.Conn].
func (w *watched) Read(p []byte) (int, error) {
	n, err := w.from.Read(p)
	if err != nil {
		w.ended()
	}
	return n, err
}

func (p *Pool) room(target Target) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.full(target)
}

// full returns an error if a target may have no further tunnel. The lock is held.
func (p *Pool) full(target Target) error {
	if len(p.open[target.Key]) >= most {
		return fmt.Errorf("%w: the physical cluster has %d, which is the maximum", ErrTooMany, most)
	}
	if p.of[target.Tenant] >= mostOfTenant {
		return fmt.Errorf("%w: the physical clusters of a tenant have %d to one server at most; use Push mode for some, or stop agents that are not needed", ErrTooMany, mostOfTenant)
	}
	return nil
}

func (p *Pool) add(target Target, c *Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.full(target) != nil {
		return false
	}
	if p.open == nil {
		p.open, p.of = map[string][]*Conn{}, map[string]int{}
	}
	p.open[target.Key] = append(p.open[target.Key], c)
	p.of[target.Tenant]++
	return true
}

func (p *Pool) remove(target Target, c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var left []*Conn
	for _, o := range p.open[target.Key] {
		if o != c {
			left = append(left, o)
		}
	}
	if p.open[target.Key] = left; len(left) == 0 {
		delete(p.open, target.Key)
	}
	if p.of[target.Tenant]--; p.of[target.Tenant] == 0 {
		delete(p.of, target.Tenant)
	}
}

// Transport returns a transport to the physical cluster of a target. The agent adds the credentials,
// and chooses the address: the URLs of requests are http, and their hosts have no meaning. A request
// fails with [ErrNone] if there is no tunnel to this server.
func (p *Pool) Transport(target string) http.RoundTripper { return &transport{p, target} }

// Dial opens a connection to the physical cluster of a target, for HTTP/1.1 without TLS: the tunnel
// is encrypted.
func (p *Pool) Dial(ctx context.Context, target string) (net.Conn, error) {
	c := p.find(target)
	if c == nil {
		return nil, ErrNone
	}
	return c.dial(ctx, "", "")
}

// find returns the newest tunnel of a target, or nil.
func (p *Pool) find(target string) *Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range slices.Backward(p.open[target]) {
		if c.client.CanTakeNewRequest() {
			return c
		}
	}
	return nil
}

type transport struct {
	pool   *Pool
	target string
}

// RoundTrip implements [http.RoundTripper].
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	c := t.pool.find(t.target)
	if c == nil {
		if req.Body != nil {
			_ = req.Body.Close() // it is not read
		}
		return nil, ErrNone
	}
	return c.transport.RoundTrip(req)
}

// A half is a connection of which Close ends only the reads: what has arrived can still be written.
type half struct{ net.Conn }

// Close implements [io.Closer].
func (h half) Close() error { return h.SetReadDeadline(time.Unix(1, 0)) }

// An end is the server's end of a connection.
type end struct {
	net.Conn
	cancel func()
}

// Close closes the end. The agent gets what was written, and may not hold the stream open afterwards.
func (e *end) Close() error {
	time.AfterFunc(lingers, e.cancel)
	return e.Conn.Close()
}

// dial opens a stream. Its two ends are joined by a pipe, which has the deadlines that streams lack.
func (c *Conn) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	whole, cancel := context.WithCancel(context.Background()) // the connection outlives the dialing
	stop := context.AfterFunc(ctx, cancel)
	req := (&http.Request{Method: http.MethodConnect, URL: &url.URL{Host: "physical"}, Host: "physical", Header: http.Header{}, Body: half{far}}).WithContext(whole)
	resp, err := c.client.RoundTrip(req)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.Join(fmt.Errorf("the agent refuses the connection: %s", resp.Status), resp.Body.Close())
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, errors.Join(err, near.Close(), far.Close())
	}
	go func() {
		defer cancel()
		_, _ = io.Copy(far, resp.Body) // either side ends it
		_ = far.Close()                // the other side, too; the request reads it, and ends before its response can be closed
		_ = resp.Body.Close()
	}()
	return &end{near, cancel}, nil
}
