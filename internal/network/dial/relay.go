package dial

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/unforked/kcp/internal/cluster"
)

// RelayLimits limit client requests that are proxied to a tenant's endpoint.
// The zero value of a field means its default.
type RelayLimits struct {
	// Header is the timeout for the response headers, 30 s by default.
	Header time.Duration
	// TenantRequests is the maximum of concurrent requests of one tenant, including
	// watches and upgraded connections, 500 by default. Requests is the maximum of all
	// tenants, 5,000 by default.
	TenantRequests, Requests int
	// TenantWork and Work are the same for requests of the server's own work for a tenant, 10,000
	// and 40,000 by default: 400 servers with 25 watches each. TenantProbes and Probes are the same
	// for its probes, 1,000 and 10,000 by default.
	TenantWork, Work, TenantProbes, Probes int
}

func (l RelayLimits) withDefaults() RelayLimits {
	set(&l.Header, 30*time.Second)
	set(&l.TenantRequests, 500)
	set(&l.Requests, 5000)
	set(&l.TenantWork, 10_000)
	set(&l.Work, 40_000)
	set(&l.TenantProbes, 1000)
	set(&l.Probes, 10_000)
	return l
}

// ErrBusy means that the limit of concurrent requests is reached, of the tenant or of
// the server.
var ErrBusy = errors.New("too many concurrent requests to outside servers")

// A Redirected is the error for a response that is a redirect. It is not proxied,
// because the client would send its credentials to the new URL.
type Redirected struct{ err error }

// Error implements error.
func (r *Redirected) Error() string { return r.err.Error() }

func newRelay(d *Dialer) *http.Transport {
	t := d.http.Clone()
	t.DialContext, t.DialTLSContext = d.http.DialContext, d.connect
	t.MaxConnsPerHost = 0 // limiters limit requests
	t.ResponseHeaderTimeout = d.relayLimits.Header
	t.DisableCompression = true // bodies are proxied unchanged
	return t
}

// Relay returns a transport that proxies client requests for a tenant. Servers are
// verified with bundle, as in [Dialer.For]. The caller sets the headers that identify the
// user. Only the response headers have a timeout, and connections can be upgraded. If
// certificate is not nil, each new connection calls it for the client certificate.
// A request that exceeds [RelayLimits] fails with [ErrBusy] without waiting.
func (d *Dialer) Relay(tenant cluster.Name, bundle []byte, certificate func() (*tls.Certificate, error)) (http.RoundTripper, error) {
	made, err := d.For(tenant, bundle)
	if err != nil {
		return nil, err
	}
	c, _ := made.(*caller)
	c.trust = sha256.Sum256(append([]byte("relay\n"), bundle...))
	return &relay{c, certificate, d.relays}, nil
}

// Private is Relay for requests with credentials of a tenant: they share connections with those of
// no other transport, which may have another client certificate.
func (d *Dialer) Private(tenant cluster.Name, bundle []byte, certificate func() (*tls.Certificate, error)) (http.RoundTripper, error) {
	made, err := d.Relay(tenant, bundle, certificate)
	if err != nil {
		return nil, err
	}
	r, _ := made.(*relay)
	r.trust = sha256.Sum256([]byte("private\n" + rand.Text()))
	return r, nil
}

// Work is Private for requests of the server itself, not of clients: its work with a server of a tenant, and
// probes of that server. The two transports share connections. Each has limits of its own, so neither requests
// of clients nor the work keep the server from probing.
func (d *Dialer) Work(tenant cluster.Name, bundle []byte, certificate func() (*tls.Certificate, error)) (work, probe http.RoundTripper, err error) {
	made, err := d.Private(tenant, bundle, certificate)
	if err != nil {
		return nil, nil, err
	}
	r, _ := made.(*relay)
	return &relay{r.caller, certificate, d.work}, &relay{r.caller, certificate, d.probes}, nil
}

// A relay proxies requests for one tenant.
type relay struct {
	*caller
	certificate func() (*tls.Certificate, error)
	limits      *limiter
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
	leave, ok := r.limits.try(r.tenant)
	if !ok {
		return nil, ErrBusy
	}
	ctx, cancel := context.WithCancel(context.WithValue(req.Context(), endpointKey{}, at))
	stop := context.AfterFunc(d.closed, cancel)
	end := sync.OnceFunc(func() { stop(); cancel(); leave() })
	resp, err := d.relayed.RoundTrip(r.addressed(ctx, req, at))
	if err != nil {
		end()
		return nil, d.ending(failed(ctx, at, err))
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

// relayedBody and upgradedBody free the slot of their request when they are closed.
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

// try is [limiter.enter] without waiting: it returns false if no slot is free.
func (l *limiter) try(tenant cluster.Name) (leave func(), ok bool) {
	at, err := l.join(tenant)
	if err != nil {
		return nil, false
	}
	var taken []chan struct{}
	for _, slots := range []chan struct{}{at.slots, at.owner.slots, l.all} {
		select {
		case slots <- struct{}{}:
			taken = append(taken, slots)
			continue
		default:
		}
		for _, slots := range taken {
			<-slots
		}
		l.part(tenant, at)
		return nil, false
	}
	return l.leave(tenant, at), true
}
