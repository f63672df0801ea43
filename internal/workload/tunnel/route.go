package tunnel

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
)

// peerProtocol is the protocol that servers upgrade connections to each other to. What follows is a
// connection to the physical cluster, as of [Pool.Dial].
const peerProtocol = "kcp-tunnel-peer"

// A Server is another server, which may have the tunnel of a target.
type Server struct {
	// URL is where the server serves the tunnel of the target, see [Pool.Pass].
	URL *url.URL
	// TLS configures connections to the server.
	TLS *tls.Config
}

// Pass makes the connection of a request of another server one to the physical cluster of a target,
// and returns when it has ended, or stop is closed.
func (p *Pool) Pass(w http.ResponseWriter, req *http.Request, target string, stop <-chan struct{}) {
	if err := upgradable(req, peerProtocol); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(req.Context(), answers)
	far, err := p.Dial(ctx, target)
	cancel()
	switch {
	case errors.Is(err, ErrNone):
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	near, err := hijack(w, peerProtocol)
	if err != nil {
		_ = far.Close() // it is not used
		return
	}
	end := sync.OnceFunc(func() { _, _ = near.Close(), far.Close() })
	ended := make(chan struct{})
	var both sync.WaitGroup
	both.Go(func() {
		select {
		case <-stop:
			end()
		case <-ended:
		}
	})
	both.Go(func() { defer end(); _, _ = io.Copy(far, near) }) // an end of either side is the end
	_, _ = io.Copy(near, far)
	end()
	close(ended)
	both.Wait()
}

// Route returns a transport like [Pool.Transport]. While this server has no tunnel of the target, it
// goes through another server that has one.
func (p *Pool) Route(target string, others func(context.Context) ([]Server, error)) http.RoundTripper {
	return &routed{transport{p, target}, &http.Transport{IdleConnTimeout: ping, DisableCompression: true, MaxResponseHeaderBytes: header,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			all, err := others(ctx)
			if err != nil {
				return nil, err
			}
			return first(ctx, all)
		}}}
}

type routed struct {
	own    transport
	others http.RoundTripper
}

// RoundTrip implements [http.RoundTripper].
func (r *routed) RoundTrip(req *http.Request) (*http.Response, error) {
	if r.own.pool.find(r.own.target) != nil {
		return r.own.RoundTrip(req)
	}
	return r.others.RoundTrip(req)
}

// first asks all servers at once, and returns the first connection.
func first(ctx context.Context, all []Server) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		conn net.Conn
		err  error
	}
	answers := make(chan answer, len(all))
	for _, s := range all {
		go func() {
			conn, err := open(ctx, s.URL, s.TLS, peerProtocol)
			answers <- answer{conn, err}
		}()
	}
	var found net.Conn
	errs := []error{ErrNone}
	for range all {
		a := <-answers
		switch {
		case a.err != nil:
			errs = append(errs, a.err)
		case found == nil:
			found = a.conn
			cancel() // the others
		default:
			_ = a.conn.Close() // one is enough
		}
	}
	if found == nil {
		return nil, errors.Join(errs...)
	}
	return found, nil
}
