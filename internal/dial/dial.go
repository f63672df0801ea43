// Package dial hides how the server calls what a tenant tells it to call, such as
// webhooks: which addresses it never calls, that it brings no credentials along, and
// that no tenant's calls hold up another's.
package dial

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/unforked/kcp/internal/cluster"
)

// Limits bound calls. The zero value of each field stands for its default.
type Limits struct {
	// Timeout of a call, from waiting for its turn to the end of the answer.
	// The default is 30 s.
	Timeout time.Duration
	// Answer is how many bytes an answer may have. The default is 8 MiB.
	Answer int64
	// TenantCalls is how many calls one tenant has at once, 16 by default, and
	// TenantWaiting how many more may wait for that, 1,000 by default.
	TenantCalls, TenantWaiting int
	// Calls is how many calls all tenants have at once, 1,024 by default.
	Calls int
	// TenantHeld is how many bytes of answers are read for one tenant at a time, 32 MiB
	// by default, and Held for all of them, 256 MiB.
	TenantHeld, Held int64
	// Idle is how many connections are kept for the next call, 256 by default, and
	// IdleTime for how long, 15 s.
	Idle     int
	IdleTime time.Duration
}

func (l Limits) withDefaults() Limits {
	set(&l.Timeout, 30*time.Second)
	set(&l.Answer, 8<<20)
	set(&l.TenantCalls, 16)
	set(&l.TenantWaiting, 1000)
	set(&l.Calls, 1024)
	set(&l.TenantHeld, 32<<20)
	set(&l.Held, 256<<20)
	set(&l.Idle, 256)
	set(&l.IdleTime, 15*time.Second)
	return l
}

func set[T comparable](field *T, to T) {
	var zero T
	if *field == zero {
		*field = to
	}
}

const (
	connectTime     = 10 * time.Second
	maxHeader       = 64 << 10 // bytes
	idlePerEndpoint = 4
)

// Options say what may be called. The zero value is of use: it lets tenants call what
// is on the internet.
type Options struct {
	// Allow and Deny are ranges of addresses that tenants may and may not reach. The
	// narrowest range decides; see [Refused].
	Allow, Deny []netip.Prefix
	// Own are the addresses of the server itself and of its etcd, as host:port. They
	// are never called, whatever is allowed.
	Own []string
	// Resolver finds the addresses of names. The default is that of the machine.
	Resolver *net.Resolver
	Limits   Limits
	Relays   RelayLimits
}

// A Dialer makes the calls that tenants cause. There is one in a server. It keeps
// nothing for a tenant that has no call and no idle connection.
type Dialer struct {
	rules    rules
	own      []string
	resolver *net.Resolver
	limits   Limits
	lanes    *lanes
	http     *http.Transport

	relayLimits RelayLimits
	relays      *lanes
	relayed     *http.Transport

	closed context.Context // ends all calls
	close  context.CancelFunc
}

// New returns a dialer.
func New(o Options) *Dialer {
	d := &Dialer{rules: newRules(o.Allow, o.Deny), own: o.Own, resolver: o.Resolver, limits: o.Limits.withDefaults()}
	if d.resolver == nil {
		// That of the C library goes on after the call has ended, and reads numbers in
		// odd bases as addresses.
		d.resolver = &net.Resolver{PreferGo: true}
	}
	d.lanes = newLanes(d.limits)
	d.closed, d.close = context.WithCancel(context.Background())
	d.http = &http.Transport{
		// No Proxy: that of the environment is the server's.
		DialContext:            func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("only TLS is spoken") },
		DialTLSContext:         d.connect,
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{}, // as upstream, which lets a load balancer see each request
		MaxIdleConns:           d.limits.Idle,
		MaxIdleConnsPerHost:    idlePerEndpoint,
		MaxConnsPerHost:        d.limits.TenantCalls,
		IdleConnTimeout:        d.limits.IdleTime,
		MaxResponseHeaderBytes: maxHeader,
		ExpectContinueTimeout:  time.Second,
	}
	d.relayLimits = o.Relays.withDefaults()
	d.relays = newLanes(Limits{TenantCalls: d.relayLimits.TenantRequests, TenantWaiting: 1, Calls: d.relayLimits.Requests})
	d.relayed = newRelay(d)
	return d
}

// Close ends all calls, and closes idle connections. Later calls fail.
func (d *Dialer) Close() {
	d.close()
	d.http.CloseIdleConnections()
	d.relayed.CloseIdleConnections()
}

// For returns what makes calls for a tenant, to servers whose certificates are verified
// by a bundle of certificate authorities in PEM, or by those of the machine if there is
// none. Connections are shared only between calls for one tenant with one bundle.
// Redirects are an error, and so is an answer that goes over a limit. A call holds one
// of the tenant's places until its answer is closed.
func (d *Dialer) For(tenant cluster.Name, bundle []byte) (http.RoundTripper, error) {
	c := &caller{dialer: d, tenant: tenant, trust: sha256.Sum256(bundle)}
	if len(bytes.TrimSpace(bundle)) > 0 {
		c.roots = x509.NewCertPool()
		if !c.roots.AppendCertsFromPEM(bundle) {
			return nil, errors.New("no certificate authority in the CA bundle; it must be in PEM")
		}
	}
	return c, nil
}

// A caller makes the calls of one tenant.
type caller struct {
	dialer *Dialer
	tenant cluster.Name
	trust  [sha256.Size]byte // of the bundle
	roots  *x509.CertPool    // nil for those of the machine
}

// An endpoint is where a call goes. It travels in the context, past the transport,
// which knows it by its key only.
type endpoint struct {
	host, port string
	roots      *x509.CertPool
	// certificate is what the server shows there, nil for none.
	certificate func() (*tls.Certificate, error)
}

type endpointKey struct{}

// RoundTrip implements [http.RoundTripper].
func (c *caller) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := c.call(req)
	if err != nil && req.Body != nil {
		_ = req.Body.Close() // it is the caller's error that counts
	}
	return resp, err
}

func (c *caller) call(req *http.Request) (*http.Response, error) {
	at, err := endpointOf(req.URL)
	if err != nil {
		return nil, err
	}
	at.roots = c.roots
	d := c.dialer
	ctx, cancel := context.WithTimeout(context.WithValue(req.Context(), endpointKey{}, at), d.limits.Timeout)
	stop := context.AfterFunc(d.closed, cancel)
	leave, err := d.lanes.enter(ctx, c.tenant)
	if err != nil {
		stop()
		cancel()
		return nil, d.ending(err)
	}
	end := sync.OnceFunc(func() { stop(); cancel(); leave() })
	resp, err := d.http.RoundTrip(c.addressed(ctx, req, at))
	if err == nil {
		resp.Request = req
		err = redirect(resp)
	}
	if err != nil {
		end()
		return nil, d.ending(err)
	}
	// Clients of Kubernetes wait as long as this says, and ask again, holding up a
	// request of ours.
	resp.Header.Del("Retry-After")
	resp.Body = &answer{body: resp.Body, dialer: d, tenant: c.tenant, end: end}
	return resp, nil
}

// ending says of an error of a call that it was ended by the server, if it was.
func (d *Dialer) ending(err error) error {
	if d.closed.Err() != nil {
		return fmt.Errorf("the server is stopping: %w", err)
	}
	return err
}

func endpointOf(u *url.URL) (endpoint, error) {
	host, port := u.Hostname(), u.Port()
	switch {
	case u.Scheme != "https":
		return endpoint{}, fmt.Errorf("only https is spoken, and not %q", u.Scheme)
	case u.User != nil:
		return endpoint{}, errors.New("a URL with a user is not called; leave out what is before the @")
	case host == "":
		return endpoint{}, errors.New("a URL without a host")
	case port == "":
		port = "443"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return endpoint{}, fmt.Errorf("%q is not a port; use one from 1 to 65535", port)
	}
	return endpoint{host: host, port: port}, nil
}

// addressed returns req in the name of its tenant: the transport keeps connections by
// the host that it sees, so it sees one that differs by tenant and trust.
func (c *caller) addressed(ctx context.Context, req *http.Request, at endpoint) *http.Request {
	sum := sha256.New()
	_, _ = fmt.Fprintf(sum, "%s\n%x\n%s\n%s", c.tenant, c.trust, at.host, at.port) // a hash takes everything
	to := req.Clone(ctx)
	if to.Host == "" {
		to.Host = req.URL.Host
	}
	to.URL.Host = hex.EncodeToString(sum.Sum(nil))
	return to
}

// redirect returns an error for an answer that sends the caller elsewhere. The place
// may be one that was not written down by who answers for the tenant's URL.
func redirect(resp *http.Response) error {
	switch resp.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		_ = resp.Body.Close() // nobody reads it
		return fmt.Errorf("it answers with a redirect (%d) to %q, which is not followed; use the URL that answers", resp.StatusCode, resp.Header.Get("Location"))
	}
	return nil
}

// connect opens a connection for the transport, and checks where to. The transport may
// use the connection for another call to the same endpoint, and go on connecting when
// the call that wanted it has ended.
func (d *Dialer) connect(ctx context.Context, network, _ string) (net.Conn, error) {
	to, ok := ctx.Value(endpointKey{}).(endpoint)
	if !ok {
		return nil, errors.New("a connection to nowhere")
	}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	defer context.AfterFunc(d.closed, cancel)()
	raw, err := (&net.Dialer{Resolver: d.resolver, ControlContext: d.control}).DialContext(ctx, network, net.JoinHostPort(to.host, to.port))
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: to.roots, ServerName: to.host, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if to.certificate != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return to.certificate() }
	}
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return conn, nil
}

// control is asked with the address that is about to be connected to: what names stand
// for cannot change any more.
func (d *Dialer) control(ctx context.Context, network, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("refusing to call %s over %s: %w", address, network, err)
	}
	if why := d.rules.check(at.Addr()); why != "" {
		return &Refused{at, why}
	}
	mine, err := own(ctx, at, d.own, d.resolver.LookupNetIP)
	if err != nil {
		return &Refused{at, "it cannot be told whether that is the server itself: " + err.Error()}
	}
	if mine {
		return &Refused{at, "it is the server itself, or its etcd, and no flag changes that"}
	}
	return nil
}

// An answer is the body of a response, of which too much is an error. It holds the
// place of its call until it is closed.
type answer struct {
	body   io.ReadCloser
	dialer *Dialer
	tenant cluster.Name
	read   int64
	end    func()
	ended  bool
}

// Read implements [io.Reader].
func (a *answer) Read(b []byte) (int, error) {
	if a.ended {
		return 0, io.EOF
	}
	n, err := a.body.Read(b)
	a.read += int64(n)
	if over := a.dialer.lanes.hold(a.tenant, int64(n)); over != nil {
		return n, over
	}
	if a.read > a.dialer.limits.Answer {
		return n, fmt.Errorf("the answer is longer than %d bytes", a.dialer.limits.Answer)
	}
	return n, err
}

// Close implements [io.Closer].
func (a *answer) Close() error {
	if a.ended {
		return nil
	}
	a.ended = true
	err := a.body.Close()
	_ = a.dialer.lanes.hold(a.tenant, -a.read) // less is never too much
	a.end()
	return err
}
