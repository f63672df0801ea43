package dial

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/unforked/kcp/internal/cluster"
)

// RelayLimits bound the requests of clients that are passed on to what a tenant names.
// The zero value of each field stands for its default.
type RelayLimits struct {
	// Header is how long the beginning of an answer may take, 30 s by default.
	Header time.Duration
	// TenantRequests is how many are passed on for one tenant at once, watches and
	// upgraded connections among them, 500 by default, and Requests for all, 5,000.
	TenantRequests, Requests int
}

func (l RelayLimits) withDefaults() RelayLimits {
	set(&l.Header, 30*time.Second)
	set(&l.TenantRequests, 500)
	set(&l.Requests, 5000)
	return l
}

// ErrBusy tells that a tenant, or all of them, have as many requests passed on as may be
// at once.
var ErrBusy = errors.New("too many requests are being passed on at once")

// A Redirected tells that an answer sends whoever asked elsewhere, which is not passed
// on: his credentials would follow.
type Redirected struct{ err error }

// Error implements error.
func (r *Redirected) Error() string { return r.err.Error() }

func newRelay(d *Dialer) *http.Transport {
	t := d.http.Clone()
	t.DialContext, t.DialTLSContext = d.http.DialContext, d.connect
	t.MaxConnsPerHost = 0 // places bound them
	t.ResponseHeaderTimeout = d.relayLimits.Header
	t.DisableCompression = true // bytes are passed on as they are
	return t
}

// Relay returns what passes requests of clients on for a tenant, as [Dialer.For] makes
// calls: to servers that are verified by a bundle, which is told who asks by whoever uses
// it. A request and its answer may take as long as they like, but for the beginning of the
// answer. Connections can be upgraded. If certificate is not nil it returns the one that
// the server shows, which is then asked for whenever a connection is opened.
func (d *Dialer) Relay(tenant cluster.Name, bundle []byte, certificate func() (*tls.Certificate, error)) (http.RoundTripper, error) {
	made, err := d.For(tenant, bundle)
	if err != nil {
		return nil, err
	}
	c, _ := made.(*caller)
	c.trust = sha256.Sum256(append([]byte("relay\n"), bundle...))
	return &relay{c, certificate}, nil
}

// A relay passes requests on for one tenant.
type relay struct {
	*caller
	certificate func() (*tls.Certificate, error)
}

// RoundTrip implements [http.RoundTripper].
func (r *relay) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.pass(req)
	if err != nil && req.Body != nil {
		_ = req.Body.Close() // it is the caller's error that counts
	}
	return resp, err
}

func (r *relay) pass(req *http.Request) (*http.Response, error) {
	at, err := endpointOf(req.URL)
	if err != nil {
		return nil, err
	}
	at.roots, at.certificate = r.roots, r.certificate
	d := r.dialer
	leave, ok := d.relays.try(r.tenant)
	if !ok {
		return nil, ErrBusy
	}
	ctx, cancel := context.WithCancel(context.WithValue(req.Context(), endpointKey{}, at))
	stop := context.AfterFunc(d.closed, cancel)
	end := sync.OnceFunc(func() { stop(); cancel(); leave() })
	resp, err := d.relayed.RoundTrip(r.addressed(ctx, req, at))
	if err != nil {
		end()
		return nil, d.ending(err)
	}
	if err := redirect(resp); err != nil {
		end()
		return nil, &Redirected{err}
	}
	resp.Request = req
	if upgraded, ok := resp.Body.(io.ReadWriteCloser); ok && resp.StatusCode == http.StatusSwitchingProtocols {
		resp.Body = &upgradedBody{upgraded, end}
	} else {
		resp.Body = &relayedBody{resp.Body, end}
	}
	return resp, nil
}

// relayedBody and upgradedBody give back the place of their request when they are closed.
type (
	relayedBody struct {
		io.ReadCloser
		end func()
	}
	upgradedBody struct {
		io.ReadWriteCloser
		end func()
	}
)

// Close implements [io.Closer].
func (b *relayedBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// Close implements [io.Closer].
func (b *upgradedBody) Close() error {
	defer b.end()
	return b.ReadWriteCloser.Close()
}

// try is enter for those who do not wait.
func (l *lanes) try(tenant cluster.Name) (leave func(), ok bool) {
	at, err := l.join(tenant)
	if err != nil {
		return nil, false
	}
	select {
	case at.slots <- struct{}{}:
	default:
		l.part(tenant, at)
		return nil, false
	}
	select {
	case l.all <- struct{}{}:
	default:
		<-at.slots
		l.part(tenant, at)
		return nil, false
	}
	return func() { <-l.all; <-at.slots; l.part(tenant, at) }, true
}
