// Package dial provides HTTP transports for calls to URLs that tenants configure, such
// as webhooks. It hides which addresses are denied, keeps the server's credentials out of
// the calls, and limits concurrent calls per tenant.
package dial

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
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

	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/bounds"
)

// Limits limit calls. The zero value of a field means its default.
type Limits struct {
	// Timeout limits a call, from waiting for a slot to the end of the response.
	// The default is 30 s.
	Timeout time.Duration
	// Answer is the maximum size of a response in bytes. The default is 8 MiB.
	Answer int64
	// TenantCalls is the maximum of concurrent calls of one tenant, 16 by default.
	// TenantWaiting is the maximum of calls that wait for a slot, 1,000 by default.
	TenantCalls, TenantWaiting int
	// Calls is the maximum of concurrent calls of all tenants, 1,024 by default.
	Calls int
	// TenantHeld is the maximum of bytes in the open responses of one tenant, 32 MiB
	// by default. Held is the maximum for all tenants, 256 MiB by default.
	TenantHeld, Held int64
	// Idle is the maximum of idle connections, 256 by default. IdleTime is the time
	// after which an idle connection is closed, 15 s by default.
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

// Options configure a [Dialer]. The zero value lets tenants call public addresses only.
type Options struct {
	// Allow and Deny are ranges of addresses that tenants may and may not call. The
	// narrowest range that contains an address decides.
	Allow, Deny []netip.Prefix
	// Own are the addresses of the server and its etcd, as host:port. Calls to them
	// are always denied.
	Own []string
	// Resolver resolves names. The default is Go's resolver with the machine's
	// configuration.
	Resolver *net.Resolver
	Limits   Limits
	Relays   RelayLimits
	// Owner returns the owner of a tenant. The tenants of one owner use at most a quarter of the
	// calls, and of the bytes of responses, of all tenants. If it is nil, each tenant is its own owner.
	Owner func(tenant cluster.Name) cluster.Name
}

// A Dialer makes calls on behalf of tenants. A server has one. A tenant without calls
// and idle connections uses no memory. All methods are safe for concurrent use.
type Dialer struct {
	rules    rules
	own      []string
	resolver *net.Resolver
	limits   Limits
	calls    *limiter
	http     *http.Transport

	relayLimits RelayLimits
	relays      *limiter // of client requests
	work        *limiter
	probes      *limiter
	relayed     *http.Transport

	closed context.Context // ends all calls
	close  context.CancelFunc
}

// New returns a dialer.
func New(o Options) *Dialer {
	d := &Dialer{rules: newRules(o.Allow, o.Deny), own: o.Own, resolver: o.Resolver, limits: o.Limits.withDefaults()}
	if d.resolver == nil {
		// The C library's resolver cannot be cancelled, and accepts octal and
		// hexadecimal numbers as addresses.
		d.resolver = &net.Resolver{PreferGo: true}
	}
	d.calls = newLimiter(d.limits, o.Owner)
	d.closed, d.close = context.WithCancel(context.Background())
	d.http = &http.Transport{
		// No Proxy: the environment's proxy is for the server's own calls.
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return nil, errors.New("only https is supported")
		},
		DialTLSContext:         d.connect,
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{}, // no HTTP/2, as upstream: load balancers then spread requests
		MaxIdleConns:           d.limits.Idle,
		MaxIdleConnsPerHost:    idlePerEndpoint,
		MaxConnsPerHost:        d.limits.TenantCalls,
		IdleConnTimeout:        d.limits.IdleTime,
		MaxResponseHeaderBytes: maxHeader,
		ExpectContinueTimeout:  time.Second,
	}
	d.relayLimits = o.Relays.withDefaults()
	d.relays = newLimiter(Limits{TenantCalls: d.relayLimits.TenantRequests, TenantWaiting: 1, Calls: d.relayLimits.Requests}, o.Owner)
	d.work = newLimiter(Limits{TenantCalls: d.relayLimits.TenantWork, TenantWaiting: 1, Calls: d.relayLimits.Work}, o.Owner)
	d.probes = newLimiter(Limits{TenantCalls: d.relayLimits.TenantProbes, TenantWaiting: 1, Calls: d.relayLimits.Probes}, o.Owner)
	d.relayed = newRelay(d)
	return d
}

// Close cancels all calls and closes idle connections. Later calls fail.
func (d *Dialer) Close() {
	d.close()
	d.http.CloseIdleConnections()
	d.relayed.CloseIdleConnections()
}

// For returns a transport for calls of a tenant. Servers are verified with bundle,
// certificate authorities in PEM; an empty bundle means those of the machine. Only calls
// of the same tenant with the same bundle share connections. A redirect is an error, and
// so is a response that exceeds a limit. A call occupies one of the tenant's slots until
// the response body is closed.
func (d *Dialer) For(tenant cluster.Name, bundle []byte) (http.RoundTripper, error) {
	c := &caller{dialer: d, tenant: tenant, trust: sha256.Sum256(bundle)}
	if len(bytes.TrimSpace(bundle)) > 0 {
		var err error
		if c.roots, err = rootsOf(bundle); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// rootsOf returns the certificate authorities in a bundle in PEM. Go's TLS limits the keys of the certificates
// that a server sends, but not those of authorities.
func rootsOf(bundle []byte) (*x509.CertPool, error) {
	roots, found := x509.NewCertPool(), false
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" || len(block.Headers) > 0 {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			continue
		}
		if err := bounds.PublicKey(c.PublicKey, bounds.Modulus); err != nil {
			return nil, fmt.Errorf("a certificate authority in the CA bundle: %w", err)
		}
		roots.AddCert(c)
		found = true
	}
	if !found {
		return nil, errors.New("no certificate authority in the CA bundle; it must be in PEM")
	}
	return roots, nil
}

// A caller makes the calls of one tenant.
type caller struct {
	dialer *Dialer
	tenant cluster.Name
	trust  [sha256.Size]byte // hash of the bundle
	roots  *x509.CertPool    // nil for the machine's certificate authorities
}

// An endpoint is the destination of a call. It is passed to connect in the context,
// because the transport sees only a hash of it; see addressed.
type endpoint struct {
	host, port string
	roots      *x509.CertPool
	// certificate returns the server's client certificate. Nil means none.
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
	leave, err := d.calls.enter(ctx, c.tenant)
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
		return nil, d.ending(failed(ctx, at, err))
	}
	// Kubernetes clients would wait for this time and retry, which delays the request
	// that waits for the call.
	resp.Header.Del("Retry-After")
	resp.Body = &answer{body: resp.Body, from: at, dialer: d, tenant: c.tenant, end: end}
	return resp, nil
}

// ending adds to err that the server is stopping, if it is.
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
		return endpoint{}, fmt.Errorf("scheme %q is not supported; use https", u.Scheme)
	case u.User != nil:
		return endpoint{}, errors.New("the URL contains a user; remove the part before the @")
	case host == "":
		return endpoint{}, errors.New("the URL has no host")
	case port == "":
		port = "443"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return endpoint{}, fmt.Errorf("%q is not a port; use one from 1 to 65535", port)
	}
	return endpoint{host: host, port: port}, nil
}

// addressed returns a copy of req whose URL host is a hash of tenant, bundle and
// endpoint. The transport pools connections by URL host, so tenants never share one.
func (c *caller) addressed(ctx context.Context, req *http.Request, at endpoint) *http.Request {
	sum := sha256.New()
	_, _ = fmt.Fprintf(sum, "%s\n%x\n%s\n%s", c.tenant, c.trust, at.host, at.port) // a hash never fails
	to := req.Clone(ctx)
	if to.Host == "" {
		to.Host = req.URL.Host
	}
	to.URL.Host = hex.EncodeToString(sum.Sum(nil))
	return to
}

// redirect returns an error if resp is a redirect, and closes its body then. Redirects
// are not followed, because the new URL was not configured by the tenant.
func redirect(resp *http.Response) error {
	switch resp.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		_ = resp.Body.Close() // the error of the redirect counts
		return fmt.Errorf("the response is a redirect (%d), which is not followed; use the final URL", resp.StatusCode)
	}
	return nil
}

// connect opens a TLS connection for the transport. Control checks the address. The
// transport may use the connection for another call to the same endpoint, and may still
// be connecting after the call has ended.
func (d *Dialer) connect(ctx context.Context, network, _ string) (net.Conn, error) {
	to, ok := ctx.Value(endpointKey{}).(endpoint)
	if !ok {
		return nil, errors.New("bug: no endpoint in the context")
	}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	defer context.AfterFunc(d.closed, cancel)()
	raw, err := (&net.Dialer{Resolver: d.resolver, ControlContext: d.control}).DialContext(ctx, network, net.JoinHostPort(to.host, to.port))
	if err != nil {
		return nil, failed(ctx, to, err)
	}
	config := &tls.Config{RootCAs: to.roots, ServerName: to.host, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if to.certificate != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			shown, err := to.certificate()
			if err != nil { // only for the log: it names a file of the server
				klog.FromContext(ctx).Error(err, "Cannot read the certificate for requests to mounted workspaces")
				return nil, &Failed{text: "the server cannot read its certificate; the log of the server says why", cause: err}
			}
			return shown, nil
		}
	}
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close() // the handshake failed
		return nil, failed(ctx, to, err)
	}
	return conn, nil
}

// control denies the connection if the rules deny address, or if the server listens
// there. It runs after name resolution, so a later DNS change cannot bypass the check.
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
		klog.FromContext(ctx).Error(err, "Cannot resolve an address of the server or its etcd: calls for logical clusters are refused", "address", address)
		return &Refused{at, "the server cannot check whether this is its own address; try again later"}
	}
	if mine {
		return &Refused{at, "it is an address of the server or its etcd, and no flag changes that"}
	}
	return nil
}

// An answer is a response body whose Read fails when a size limit is exceeded. The
// call's slot is free once the body is closed.
type answer struct {
	body   io.ReadCloser
	from   endpoint
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
	if over := a.dialer.calls.hold(a.tenant, int64(n)); over != nil {
		return n, over
	}
	if a.read > a.dialer.limits.Answer {
		return n, fmt.Errorf("the response exceeds %d bytes", a.dialer.limits.Answer)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = failed(context.Background(), a.from, err)
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
	_ = a.dialer.calls.hold(a.tenant, -a.read) // a decrease never fails
	a.end()
	return err
}
