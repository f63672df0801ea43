package tunnel

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// A Dialer opens tunnels from an agent to a server.
type Dialer struct {
	// URL is that of the tunnel at the server.
	URL *url.URL
	// TLS is the configuration of connections to the server. It has the certificate of the agent.
	TLS *tls.Config
	// Handler answers the requests of the server.
	Handler http.Handler
}

const dialing = 15 * time.Second

// Run opens a tunnel and serves it until it ends or ctx ends. connected is called once the server has
// accepted it.
func (d Dialer) Run(ctx context.Context, connected func()) error {
	socket, err := open(ctx, d.URL, d.TLS, Protocol)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = socket.Close() })
	defer stop()
	defer func() { _ = socket.Close() }() // it has ended
	connected()
	in := &streams{conns: make(chan net.Conn), done: make(chan struct{})}
	inner := &http.Server{Handler: d.Handler, ReadHeaderTimeout: dialing, IdleTimeout: 2 * ping}
	var running sync.WaitGroup
	defer running.Wait()
	defer func() { _ = inner.Close() }()
	running.Go(func() { _ = inner.Serve(in) }) // until it is closed
	outer := &http2.Server{MaxConcurrentStreams: 1000, ReadIdleTimeout: ping, PingTimeout: answers}
	outer.ServeConn(socket, &http2.ServeConnOpts{Context: ctx, BaseConfig: &http.Server{}, Handler: http.HandlerFunc(in.connect)})
	return ctx.Err()
}

// streams is a listener of the connections in a tunnel.
type streams struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// connect makes a stream a connection, until either side closes it.
func (s *streams) connect(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodConnect {
		http.Error(w, "only CONNECT", http.StatusMethodNotAllowed)
		return
	}
	near, far := net.Pipe()
	defer func() { _ = far.Close() }() // the other side, too
	select {
	case s.conns <- near:
	case <-s.done:
		return
	}
	out := http.NewResponseController(w)
	w.WriteHeader(http.StatusOK)
	if out.Flush() != nil {
		return
	}
	go func() {
		_, _ = io.Copy(far, req.Body) // either side ends it
		_ = far.Close()
	}()
	buffer := make([]byte, 32<<10)
	for {
		n, err := far.Read(buffer)
		if n > 0 {
			if _, failed := w.Write(buffer[:n]); failed != nil || out.Flush() != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// Accept implements [net.Listener].
func (s *streams) Accept() (net.Conn, error) {
	select {
	case c := <-s.conns:
		return c, nil
	case <-s.done:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (s *streams) Close() error {
	s.once.Do(func() { close(s.done) })
	return nil
}

// Addr implements [net.Listener].
func (s *streams) Addr() net.Addr { return &net.TCPAddr{} }

// open opens a connection and upgrades it to a protocol. It ends with ctx until then, and not
// afterwards.
func open(ctx context.Context, at *url.URL, config *tls.Config, protocol string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialing)
	defer cancel()
	config = config.Clone()
	config.NextProtos = []string{"http/1.1"} // which can be upgraded
	port := at.Port()
	if port == "" {
		port = "443"
	}
	dialer := tls.Dialer{NetDialer: &net.Dialer{KeepAlive: ping}, Config: config}
	socket, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(at.Hostname(), port))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = socket.Close() })
	from, err := upgrade(socket, at, protocol)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = socket.Close() // it is of no use
		return nil, err
	}
	return &watched{socket, from, func() {}}, nil
}

// upgrade asks for another protocol on a connection.
func upgrade(socket net.Conn, at *url.URL, protocol string) (*bufio.Reader, error) {
	req := &http.Request{Method: http.MethodGet, URL: at, Host: at.Host, Header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {protocol}}}
	if err := req.Write(socket); err != nil {
		return nil, err
	}
	from := bufio.NewReader(socket)
	resp, err := http.ReadResponse(from, req)
	if err != nil {
		return nil, err
	}
	switch resp.StatusCode {
	case http.StatusSwitchingProtocols:
		return from, nil
	case http.StatusNotFound:
		err = ErrNone
	default:
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)) // what there is of it
		err = fmt.Errorf("the server refuses the tunnel: %s %s", resp.Status, text)
	}
	return nil, errors.Join(err, resp.Body.Close())
}
